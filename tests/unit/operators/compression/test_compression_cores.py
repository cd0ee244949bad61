"""Passes by several threads: ranges, and the same codes and residuals as by one."""

import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.errors import OperatorError
from operators.compression import Half, Int8, OneBit, Residual, Threshold, TopK, cores
from operators.compression.cores import cuts, over_ranges

CODECS = [
    Threshold(tau=0.5),
    Threshold(density=0.1, per_layer=True),
    Threshold(tau=0.125, most="fit"),
    TopK(density=0.05),
    Half(),
    Int8(),
    OneBit(),
]


@given(n_weights=st.integers(1, 10**9), count=st.integers(1, 16))
def test_cuts_are_of_ranges_that_are_worth_a_thread(n_weights, count):
    found = cuts(n_weights, count)
    sizes = np.diff(found)
    assert (found[0], found[-1]) == (0, n_weights)
    assert len(sizes) == max(1, min(count, n_weights // cores.LEAST))
    assert sizes.max() - sizes.min() <= 1


def test_cuts_lie_where_they_may_next_to_the_even_ones(monkeypatch):
    monkeypatch.setattr(cores, "LEAST", 10)
    assert cuts(100, 4, [0, 24, 26, 50, 90, 100]) == [0, 24, 50, 90, 100]
    assert cuts(100, 4, [0, 100]) == [0, 100]


def test_ranges_are_worked_on_at_the_same_time_and_given_back_in_order():
    meeting = threading.Barrier(2)

    def work(start, stop):
        meeting.wait(30)
        return start, stop

    assert over_ranges(work, [0, 3, 7]) == [(0, 3), (3, 7)]


@pytest.mark.parametrize("bad", [0, 1])
def test_a_range_that_fails_does_so_once_all_are_done(bad):
    done = []

    def work(start, stop):
        if start == bad:
            raise KeyError(start)
        done.append(start)

    with pytest.raises(KeyError, match=str(bad)):
        over_ranges(work, [0, 1, 2])
    assert done == [1 - bad]


@pytest.mark.parametrize("codec", CODECS, ids=str)
@given(seed=st.integers(0, 2**32 - 1), n_weights=st.integers(2, 40_000), count=st.integers(2, 5))
@settings(max_examples=20, deadline=None)
def test_codes_and_residual_are_those_of_one_core(codec, seed, n_weights, count):
    rng = np.random.default_rng(seed)
    layers = sorted({0, *rng.integers(0, n_weights, 3).tolist()})
    one = Residual(codec, n_weights, layers)
    before, cores.LEAST = cores.LEAST, 1000
    try:
        several = Residual(codec, n_weights, layers, count)
    finally:
        cores.LEAST = before
    for _ in range(3):
        gradient = rng.standard_normal(n_weights).astype(np.float32)
        codes = []
        for residual in (one, several):
            residual.add(gradient)
            codes.append(residual.quantise(0.5).encode(0, n_weights).tobytes())
        assert codes[0] == codes[1]
        assert one.values.tobytes() == several.values.tobytes()
        assert one.taus.tobytes() == several.taus.tobytes()


@pytest.mark.parametrize("codec", [Threshold(tau=0.5), Half()], ids=str)
@pytest.mark.parametrize("place", [0, 1999, 2000, 7999])
def test_what_is_not_finite_is_found_in_any_range(codec, place, monkeypatch):
    monkeypatch.setattr(cores, "LEAST", 1000)
    residual = Residual(codec, 8000, cores=4)
    assert list(pairwise(cuts(8000, 4))) == [(0, 2000), (2000, 4000), (4000, 6000), (6000, 8000)]
    gradient = np.ones(8000, np.float32)
    gradient[[place, 7999]] = np.nan
    residual.add(gradient)
    with pytest.raises(OperatorError, match=f"weight {place} is not finite"):
        residual.quantise()
