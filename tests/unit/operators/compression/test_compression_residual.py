"""Error feedback: what is decoded and what is owed add up to the gradients."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.errors import OperatorError
from operators.compression import Half, Int8, OneBit, Residual, Threshold, TopK, add
from tests.unit.operators.compression.exact import decoded, eighths, vector

EXACT = [
    Threshold(tau=0.5),
    Threshold(tau=0.5, packing="words"),
    Threshold(tau=0.5, packing="rice"),
    Threshold(tau=0.5, packing="bitmap"),
    Threshold(tau=0.125, most="fit"),
    TopK(density=0.1),
    Half(),
]
"""With eighths no codec of these rounds anything but what it sends."""

ALL = [*EXACT, Threshold(density=0.1), Threshold(density=0.1, per_layer=True), Int8(), OneBit()]


def owing(codec, *values, layers=(0,)):
    residual = Residual(codec, len(values), layers)
    residual.add(vector(*values))
    return residual


@pytest.mark.parametrize("packing", ["auto", "words", "rice", "bitmap"])
def test_threshold_of_strom_sends_plus_and_minus_tau(packing):
    # strom_sparse_sgd.txt 2.6 with tau = 0.001: {1, 2, 0, 0, -1, -1} -> {t, t, 0, 0, -t, -t}
    update = owing(Threshold(tau=0.001, packing=packing), 1, 2, 0, 0, -1, -1).quantise()
    tau = np.float32(0.001)
    target = np.zeros(6, np.float32)
    add(target, update.encode(0, 6))
    assert target.tolist() == [tau, tau, 0, 0, -tau, -tau]
    add(target, update.encode(0, 6))
    assert target.tolist() == [2 * tau, 2 * tau, 0, 0, -2 * tau, -2 * tau]


def test_threshold_keeps_the_rest():
    residual = owing(Threshold(tau=0.5), 2, 0.75, -0.75, 0.25, -3)
    residual.quantise()
    assert residual.values.tolist() == [1.5, 0.25, -0.25, 0.25, -2.5]


def test_threshold_of_exactly_tau_is_not_sent():
    above = np.nextafter(np.float32(0.5), np.float32(1))
    assert decoded(owing(Threshold(tau=0.5), 0.5, -0.5, above, -above).quantise()).tolist() == [0, 0, 0.5, -0.5]


def test_threshold_all_below_tau_is_an_empty_message():
    residual = owing(Threshold(tau=1.0), 1, -1, 0.5, 0)
    update = residual.quantise()
    assert update.encode(0, 4).tolist() == [0x80, 4]
    assert update.nbytes == 4
    assert residual.values.tolist() == [1, -1, 0.5, 0]


def test_threshold_rate_scales_what_is_sent_and_not_what_is_owed():
    residual = owing(Threshold(tau=0.5), 2, -1)
    assert decoded(residual.quantise(rate=0.25)).tolist() == [0.125, -0.125]
    assert residual.values.tolist() == [1.5, -0.5]


def test_threshold_as_many_as_fit_leaves_at_most_tau():
    # 7/4 = 3 x 1/2 + 1/4; of exactly 2 taus one stays, as if they were sent one by one; 255 at most
    residual = owing(Threshold(tau=0.5, most="fit"), 1.75, 1.0, -2.5, 0.5, 200)
    assert decoded(residual.quantise()).tolist() == [1.5, 0.5, -2, 0, 127.5]
    assert residual.values.tolist() == [0.25, 0.5, -0.5, 0.5, 72.5]


def test_threshold_clip_cuts_what_stays_of_weights_that_are_sent():
    residual = owing(Threshold(tau=0.5, clip=2), 2, -2, 1.25, 0.25)
    assert decoded(residual.quantise()).tolist() == [0.5, -0.5, 0.5, 0]
    assert residual.values.tolist() == [1, -1, 0.75, 0.25]


def test_topk_sends_the_largest_as_they_are():
    residual = owing(TopK(density=0.4), 1, -5, 0.1, 3, 2)
    assert decoded(residual.quantise(), scale=2).tolist() == [0, -10, 0, 6, 0]
    assert residual.values.tolist() == [1, 0, pytest.approx(0.1), 0, 2]


def test_topk_of_equal_magnitudes_sends_the_first_and_no_zeros():
    assert decoded(owing(TopK(density=0.5), 1, -1, 1, 2).quantise()).tolist() == [1, 0, 0, 2]
    assert owing(TopK(density=0.5), 0, 0, 0, 0).quantise().encode(0, 4).tolist() == [0x80, 4]
    assert decoded(owing(TopK(density=0.75), 0, 3, 0, 0).quantise()).tolist() == [0, 3, 0, 0]


@pytest.mark.parametrize("density", [0.001, 0.03, 0.5, 1.0])
def test_topk_equals_sorting(density):
    values = np.random.default_rng(3).standard_normal(5000).astype(np.float32)
    residual = Residual(TopK(density=density), 5000)
    residual.add(values)
    sent = decoded(residual.quantise())
    expected = np.argsort(-np.abs(values), kind="stable")[: round(density * 5000)]
    assert np.flatnonzero(sent).tolist() == sorted(expected.tolist())
    assert (sent + residual.values == values).all()


def test_halves_are_numpys_and_the_largest_finite_one_at_most():
    bits = np.random.default_rng(0).integers(0, 1 << 32, 100_000, dtype=np.uint64).astype(np.uint32)
    edges = vector(0, -0.0, 1e-45, 6e-8, 2.0**-25, 3 * 2.0**-25, 2.0**-14, 65504, 65519.9, 65520, 1e38, 1, 1 + 2.0**-11)
    values = np.concatenate([bits.view(np.float32), edges, -edges, np.arange(65536, dtype=np.uint16).view(np.float16)])
    values = values[np.isfinite(values)].astype(np.float32)
    residual = Residual(Half(), values.size)
    residual.add(values)
    sent = decoded(residual.quantise())
    assert (sent == np.clip(values, -65504, 65504).astype(np.float16).astype(np.float32)).all()
    assert (residual.values == values - sent).all()


def test_int8_rounds_to_a_127th_of_the_largest():
    residual = owing(Int8(), 127, -127, 2.5, -0.5, 3.5, -1.75)
    assert decoded(residual.quantise()).tolist() == [127, -127, 2, 0, 4, -2]
    assert residual.values.tolist() == [0, 0, 0.5, -0.5, -0.5, 0.25]


def test_int8_chunks_begin_at_layers_and_have_their_own_step():
    residual = owing(Int8(), 127, 1, 254, 1.5, layers=(0, 2))
    assert decoded(residual.quantise()).tolist() == [127, 1, 254, 2]


def test_onebit_sends_the_means_of_both_signs():
    residual = owing(OneBit(), 1, 3, 0, -2, -4, 8, -8, layers=(0, 5))
    # zero is with the positive ones: (1 + 3 + 0) / 3
    mean = np.float32(4 / 3)
    assert decoded(residual.quantise()).tolist() == [mean, mean, mean, -3, -3, 8, -8]
    assert residual.values.tolist() == [1 - mean, 3 - mean, -mean, 1, -1, 0, 0]


@pytest.mark.parametrize("codec", ALL, ids=str)
def test_quantise_of_nothing_owed_says_nothing(codec):
    assert not decoded(Residual(codec, 3000).quantise()).any()


@pytest.mark.parametrize("codec", EXACT, ids=str)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_decoded_and_owed_of_eighths_are_the_sum_of_gradients(codec, data):
    n_weights = data.draw(st.integers(1, 400))
    layers = sorted({0, *data.draw(st.lists(st.integers(0, n_weights - 1), max_size=4))})
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    residual = Residual(codec, n_weights, layers)
    total, got = np.zeros(n_weights), np.zeros(n_weights)
    for step in data.draw(st.lists(st.sampled_from(["add", "send", "restore"]), max_size=12)):
        if step == "add":
            gradient = eighths(rng, n_weights)
            residual.add(gradient)
            total += gradient
        elif step == "send":
            cuts = data.draw(st.lists(st.integers(0, n_weights), max_size=3))
            got += decoded(residual.quantise(), cuts)
        else:
            kept = residual.snapshot()
            residual = Residual(codec, n_weights, layers)
            residual.restore(kept)
    assert (got + residual.values == total).all()


@pytest.mark.parametrize("codec", ALL, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_decoded_and_owed_of_any_gradients_differ_from_the_sum_by_roundings(codec, seed):
    rng = np.random.default_rng(seed)
    residual = Residual(codec, 5000, (0, 10, 2000))
    total, got, owed = np.zeros(5000), np.zeros(5000), np.zeros(5000)
    for _ in range(20):
        gradient = (rng.standard_normal(5000) * np.exp(rng.standard_normal(5000))).astype(np.float32)
        residual.add(gradient)
        total += gradient
        sent = decoded(residual.quantise())
        got += sent
        owed += np.abs(residual.values) + np.abs(sent)
    # in each step a sum, a product and a difference are rounded, none larger than what is sent and stays
    assert (np.abs(got + residual.values - total) <= 3 * 2.0**-24 * owed).all()


@pytest.mark.parametrize("codec", [Int8(), Half()], ids=str)
def test_one_update_of_any_values_is_exact(codec):
    values = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    values *= np.exp2(np.arange(100_000) % 40 - 27).astype(np.float32)
    residual = Residual(codec, 100_000)
    residual.add(values)
    sent = decoded(residual.quantise()).astype(np.float64)
    assert (sent + residual.values == values).all()


@pytest.mark.parametrize("codec", ALL, ids=str)
def test_restored_in_the_middle_goes_on_the_same(codec):
    rng = np.random.default_rng(0)
    gradients = [rng.standard_normal(3000).astype(np.float32) for _ in range(8)]
    one = Residual(codec, 3000, (0, 100, 2500))
    for gradient in gradients[:4]:
        one.add(gradient)
        one.quantise()
    other = Residual(codec, 3000, (0, 100, 2500))
    other.restore(one.snapshot())
    for gradient in gradients[4:]:
        one.add(gradient)
        other.add(gradient)
        assert one.quantise(0.1).encode(0, 3000).tobytes() == other.quantise(0.1).encode(0, 3000).tobytes()


def test_restore_of_other_tensors_is_refused_and_changes_nothing():
    residual = owing(Threshold(), 1, 2, 3)
    for tensors in (
        {"values": np.zeros(3, np.float32)},
        {"values": np.zeros(2, np.float32), "taus": np.ones(1, np.float32)},
        {"values": np.zeros(3), "taus": np.ones(1, np.float32)},
    ):
        with pytest.raises(ValueError, match="of the residual is float32"):
            residual.restore(tensors)
    assert residual.values.tolist() == [1, 2, 3]


def test_snapshot_does_not_show_what_comes_later():
    residual = owing(Threshold(tau=0.5), 1, 2)
    before = residual.snapshot()
    residual.quantise()
    assert before["values"].tolist() == [1, 2]
    assert list(before) == ["values", "unit"]


@pytest.mark.parametrize("codec", ALL, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 77, 2999])
def test_quantise_of_what_is_not_finite_is_refused_and_takes_nothing(codec, bad, place):
    residual = Residual(codec, 3000, (0, 2000))
    gradient = np.random.default_rng(0).standard_normal(3000).astype(np.float32)
    gradient[place] = bad
    residual.add(gradient)
    with pytest.raises(OperatorError, match=f"weight {place} is not finite.*lower the learning rate"):
        residual.quantise()
    np.testing.assert_array_equal(residual.values, gradient)


@pytest.mark.parametrize("codec", [Threshold(tau=1e20), TopK(), Half(), Int8(), OneBit()], ids=str)
def test_quantise_of_more_than_receivers_take_is_refused(codec):
    residual = owing(codec, 2e20, -2e20)
    with pytest.raises(OperatorError, match="larger than any sum bears"):
        residual.quantise(rate=3e35)


@pytest.mark.parametrize("rate", [-1, math.nan, math.inf, 1e39])
def test_quantise_at_no_rate_is_refused(rate):
    with pytest.raises(ValueError, match="the rate must be finite"):
        owing(Half(), 1).quantise(rate)


def test_add_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="shape"):
        owing(Half(), 1, 2).add(vector(1))


@pytest.mark.parametrize("layers", [(), (1,), (0, 0), (0, 5), (0, 3, 2)])
def test_layers_that_do_not_ascend_are_refused(layers):
    with pytest.raises(ValueError, match="layers must ascend"):
        Residual(Half(), 5, layers)


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
def test_adaptive_tau_of_steady_gradients_sends_the_density(density):
    rng = np.random.default_rng(0)
    residual = Residual(Threshold(density=density), 20_000)
    sent = []
    for _ in range(150):
        residual.add(rng.standard_normal(20_000).astype(np.float32))
        sent.append(np.count_nonzero(decoded(residual.quantise())) / 20_000)
    assert np.mean(sent[50:]) == pytest.approx(density, rel=0.1)


def test_adaptive_tau_follows_gradients_that_shrink_a_hundredfold():
    rng = np.random.default_rng(0)
    residual = Residual(Threshold(density=0.01), 20_000)
    sent = []
    for step in range(400):
        scale = np.float32(1 if step < 100 else 0.01)
        residual.add(scale * rng.standard_normal(20_000).astype(np.float32))
        sent.append(np.count_nonzero(decoded(residual.quantise())) / 20_000)
    assert np.mean(sent[300:]) == pytest.approx(0.01, rel=0.2)


def test_adaptive_tau_per_layer_sends_the_density_of_each():
    rng = np.random.default_rng(0)
    residual = Residual(Threshold(density=0.02, per_layer=True), 20_000, (0, 5000))
    scale = np.where(np.arange(20_000) < 5000, 100, 1).astype(np.float32)
    sent = np.zeros(20_000)
    for step in range(120):
        residual.add(scale * rng.standard_normal(20_000).astype(np.float32))
        update = decoded(residual.quantise())
        if step >= 40:
            sent += update != 0
    assert sent[:5000].mean() / 80 == pytest.approx(0.02, rel=0.15)
    assert sent[5000:].mean() / 80 == pytest.approx(0.02, rel=0.15)
    assert residual.taus[0] > 30 * residual.taus[1]


def test_adaptive_tau_waits_for_a_gradient():
    residual = Residual(Threshold(), 1000)
    assert residual.quantise().encode(0, 1000).tolist() == [0x80, 0xE8, 0x07]
    assert residual.taus.tolist() == [0]
    residual.add(np.eye(1, 1000, 5, dtype=np.float32)[0])
    assert np.flatnonzero(decoded(residual.quantise())).tolist() == [5]


def test_adaptive_tau_stays_while_gradients_are_zero():
    rng = np.random.default_rng(0)
    residual = Residual(Threshold(density=0.01), 20_000)
    for _ in range(60):
        residual.add(rng.standard_normal(20_000).astype(np.float32))
        residual.quantise()
    before = residual.taus.copy()
    for _ in range(3000):
        residual.add(np.zeros(20_000, np.float32))
        residual.quantise()
    assert residual.taus.tolist() == before.tolist()
    residual.add(rng.standard_normal(20_000).astype(np.float32))
    assert residual.quantise().count(0, 20_000) < 400  # 2%, twice what is wanted
    assert residual.taus.tolist() != before.tolist()


def test_adaptive_tau_that_has_dwindled_is_found_again_after_one_long_message():
    """Of sums that stand still ever less is owed, and tau follows; gradients of the old size come back then."""
    rng = np.random.default_rng(0)
    residual = Residual(Threshold(density=0.01), 20_000)
    residual.values[:] = rng.standard_normal(20_000).astype(np.float32)
    for _ in range(3000):
        residual.quantise()
    assert 0 < residual.taus[0] < 1e-6
    sent = []
    for _ in range(20):
        residual.values += rng.standard_normal(20_000).astype(np.float32)
        sent.append(residual.quantise().count(0, 20_000))
    assert sent[0] > 10_000
    assert max(sent[1:]) < 1600  # 8% of the weights


def test_adaptive_tau_with_nothing_owed_never_becomes_zero():
    residual = owing(Threshold(density=0.5), 1, -2, 3, -4)
    residual.quantise()
    residual.values[:] = 0
    for _ in range(2000):
        assert not decoded(residual.quantise()).any()
    assert residual.taus[0] > 0


@pytest.mark.parametrize("codec", [Threshold(density=0.1), Threshold(density=0.1, per_layer=True)], ids=str)
def test_taus_that_were_adapted_go_on_in_another_residual(codec):
    one, other = Residual(codec, 3000, (0, 100)), Residual(codec, 3000, (0, 100))
    one.add(eighths(np.random.default_rng(0), 3000))
    one.quantise()
    other.go_on(one.taus)
    assert other.taus.tolist() == one.taus.tolist()
    other.go_on(vector(1, 2, 3))  # of three layers
    assert other.taus.tolist() == one.taus.tolist()


def test_tau_that_was_given_does_not_go_on_as_another():
    residual = Residual(Threshold(tau=2.0), 10)
    residual.go_on(vector(3))
    assert residual.taus.tolist() == [2.0]


def test_memory_of_updates_is_as_documented():
    values = np.random.default_rng(0).standard_normal(8192).astype(np.float32)
    held = {}
    for codec in (Threshold(tau=2.0), TopK(density=0.125), Half(), Int8(), OneBit()):
        residual = Residual(codec, 8192)
        residual.add(values)
        held[codec.kind] = residual.quantise().nbytes
    over = int(np.count_nonzero(np.abs(values) > 2))
    expected = {"threshold": 4 * over + 4, "topk": 8 * 1024 + 4, "fp16": 16384, "int8": 8192 + 16, "onebit": 1024 + 32}
    assert held == expected


def test_tau_in_units_of_which_there_are_none_is_what_it_was_before():
    residual = Residual(Threshold(tau=2.0), 1)
    residual.add(vector(3.0))
    assert decoded(residual.quantise(unit=0.5)).tolist() == [1.0]
    assert decoded(residual.quantise(unit=0.0)).tolist() == [1.0]
    assert residual.values.tolist() == [1.0]


def test_tau_that_is_told_is_in_units_of_gradients_where_updates_are_owed():
    rate, random = 2.0**-6, np.random.default_rng(0)
    for codec in (Threshold(tau=0.5), Threshold(density=0.01), Threshold(density=0.01, per_layer=True)):
        of_gradients, of_updates = (Residual(codec, 3000, (0, 1000)) for _ in range(2))
        for _ in range(5):
            gradient = random.normal(size=3000).astype(np.float32)
            of_gradients.add(gradient)
            of_updates.add(np.float32(rate) * gradient)
            told = [{each.name: each.value for each in one.samples()}["tau"] for one in (of_gradients, of_updates)]
            one, other = of_gradients.quantise(), of_updates.quantise(unit=rate)
            assert one.count(0, 3000) == other.count(0, 3000)
            assert told[0] == told[1]
        assert told[0] > 0.1


@pytest.mark.parametrize("codec", [Threshold(tau=0.5), Threshold(density=0.5)])
def test_rate_of_zero_takes_the_last_one_also_after_a_checkpoint(codec):
    sent = []
    for again in (False, True):
        residual = Residual(codec, 4)
        residual.add(np.array([0.02, 0.02, 0.001, 0.001], np.float32))
        residual.quantise(unit=0.01)
        if again:
            kept, residual = residual.snapshot(), Residual(codec, 4)
            residual.restore(kept)
        sent.append(decoded(residual.quantise(unit=0.0)).tolist())
        assert residual.tau < 3
    assert sent[0] == sent[1]
    assert any(sent[0])
