"""Codes: any range, any packing, and what is refused."""

import math
import struct
import tracemalloc
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.errors import WireError
from operators.compression import Half, Int8, OneBit, Residual, Threshold, TopK, add, join, most_nbytes
from operators.compression.update import Sparse
from tests.unit.operators.compression.exact import decoded, eighths, vector
from tests.unit.operators.compression.reference import RefusedError, read

CODECS = [
    *(Threshold(tau=4.0, packing=packing) for packing in ("auto", "words", "rice", "bitmap")),
    Threshold(tau=0.25, most="fit"),
    Threshold(density=0.1, per_layer=True),
    TopK(density=0.1),
    Half(),
    Int8(),
    OneBit(),
]
LAYERS = (0, 3, 500, 510, 2300)


def update_of(codec, n_weights=2500, seed=0):
    residual = Residual(codec, n_weights, [layer for layer in LAYERS if layer < n_weights])
    residual.add(eighths(np.random.default_rng(seed), n_weights))
    return residual.quantise(0.5)


def sparse(places, n_weights, packing, layers=(0,), quanta=None):
    words = np.array([2 * abs(place) | (place < 0) for place in places], np.uint32)
    quanta = np.ones(len(layers), np.float32) if quanta is None else vector(*quanta)
    bounds = np.array([*layers, n_weights])
    bounds.setflags(write=False)
    return Sparse(words, np.empty(0, np.float32), bounds, quanta, packing)


def packed(low, places, n_weights):
    """The code of a section built here, bit by bit: Rice coded, without layers, quantum 1."""
    bits, following = "", 0
    for place in places:
        gap, following = abs(place) - following, abs(place) + 1
        bits += "0" * (gap >> low) + "1" + format(gap & ((1 << low) - 1), f"0{low}b")[::-1] * (low > 0)
        bits += "1" if place < 0 else "0"
    bits += "0" * (-len(bits) % 8)
    payload = bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))
    assert n_weights < 128 > len(places)
    return bytes([0x82, n_weights, len(places)]) + struct.pack("<f", 1) + bytes([low]) + payload


@pytest.mark.parametrize("codec", CODECS, ids=str)
@given(cuts=st.lists(st.integers(1, 2499), max_size=5))
@settings(max_examples=20, deadline=None)
def test_encode_of_parts_is_that_of_the_whole(codec, cuts):
    update = update_of(codec)
    np.testing.assert_array_equal(decoded(update, cuts), decoded(update))


@pytest.mark.parametrize("codec", CODECS, ids=str)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_codes_take_no_more_than_is_said_before_they_are_made(codec, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    residual = Residual(codec, 2500, LAYERS)
    residual.add(eighths(rng, 2500) * (rng.random(2500) < data.draw(st.sampled_from([0.001, 0.05, 1]))))
    update = residual.quantise()
    start = data.draw(st.integers(0, 2499))
    stop = data.draw(st.integers(start + 1, 2500))
    size, most = update.encode(start, stop).size, update.most_nbytes(start, stop)
    assert size <= most
    assert most <= update.most_nbytes(0, 2500)
    heads = 16 * (len(LAYERS) + 2) * len(getattr(update, "parts", (0,)))
    assert size <= most_nbytes(codec, stop - start, 2500) + heads


@pytest.mark.parametrize("density", [0.003, 0.03, 0.3, 1])
@pytest.mark.parametrize("n_weights", [1, 10, 100, 2500])
def test_codes_of_the_largest_take_no_more_than_is_said_where_all_of_these_are_in_one(density, n_weights):
    codec, residual = TopK(density=density), Residual(TopK(density=density), 2500)
    residual.add(np.arange(2500, 0, -1).astype(np.float32))
    update = residual.quantise()
    assert update.count(0, n_weights) == min(n_weights, round(density * 2500))
    assert update.encode(0, n_weights).size <= most_nbytes(codec, n_weights, 2500) + 32


@pytest.mark.parametrize("gap", [1, 2, 100, 1 << 12, (1 << 22) - 1])
@pytest.mark.parametrize("packing", ["words", "rice", "bitmap"])
def test_codes_of_updates_at_the_far_end_take_no_more_than_is_said(packing, gap):
    n_weights = 1 << 22
    for places in ([n_weights - 1], [gap - 1, n_weights - 1], range(n_weights - 40 * min(gap, 100), n_weights, gap)):
        update = sparse(places, n_weights, packing)
        assert update.encode(0, n_weights).size <= update.most_nbytes(0, n_weights)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_encode_of_every_small_range_is_a_slice_of_the_whole(codec):
    update = update_of(codec, 41)
    whole = decoded(update)
    for start, stop in combinations(range(42), 2):
        target = np.zeros(stop - start, np.float32)
        add(target, update.encode(start, stop))
        np.testing.assert_array_equal(target, whole[start:stop])


@pytest.mark.parametrize("packing", ["words", "rice", "bitmap", "auto"])
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_any_positions_are_decoded_in_every_packing(packing, data):
    n_weights = data.draw(st.integers(1, 5000))
    places = sorted(data.draw(st.sets(st.integers(0, n_weights - 1), max_size=60)))
    signs = data.draw(st.lists(st.sampled_from([1, -1]), min_size=len(places), max_size=len(places)))
    words = np.array([2 * place + (sign < 0) for place, sign in zip(places, signs, strict=True)], np.uint32)
    bounds = np.array([0, n_weights])
    bounds.setflags(write=False)
    update = Sparse(words, np.empty(0, np.float32), bounds, vector(0.5), packing)
    expected = np.zeros(n_weights, np.float32)
    expected[places] = [0.5 * sign for sign in signs]
    np.testing.assert_array_equal(decoded(update, data.draw(st.lists(st.integers(0, n_weights), max_size=3))), expected)


def test_words_are_the_index_times_two_and_the_sign():
    code = sparse([1, -5], 9, "words").encode(1, 8)
    assert code.tobytes() == bytes([0x81, 7, 2]) + struct.pack("<fII", 1, 0, 2 * 4 + 1)


def test_bitmap_has_signs_and_then_a_bit_for_each_weight():
    code = sparse([1, -5, 8], 9, "bitmap").encode(0, 9)
    assert code.tobytes() == bytes([0x83, 9, 3]) + struct.pack("<f", 1) + bytes([0b010, 0b00100010, 0b1])


def test_rice_is_unary_over_low_bits_and_the_sign():
    # a dozen of 100 weights: gaps of 7 on average, so 2 or 3 low bits
    places = [3, -10, 11, 30, -31, 38, 52, -60, 61, 80, -90, 99]
    code = sparse(places, 100, "rice").encode(0, 100)
    assert code.tobytes() == packed(int(code[7]), places, 100)
    sizes = [len(packed(low, places, 100)) for low in range(7)]
    assert code.size == min(sizes)


def test_gaps_divided_by_three_are_unary_over_a_remainder_and_the_sign():
    # gaps 3 = 3 + 0, 2 = 0 + 2, 7 = 6 + 1, 0 of 3, -6, 14, -15
    n_weights = 20
    expected = "0100", "1111", "001100", "101"
    bits = "".join(expected)
    bits += "0" * (-len(bits) % 8)
    payload = bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))
    code = np.frombuffer(bytes([0x82, n_weights, 4]) + struct.pack("<f", 1) + b"\x1f" + payload, np.uint8)
    target = np.zeros(n_weights, np.float32)
    add(target, code)
    assert np.flatnonzero(target).tolist() == [3, 6, 14, 15]
    assert target[[3, 6, 14, 15]].tolist() == [1, -1, 1, -1]
    for stop in range(code.size):
        with pytest.raises(WireError):
            add(target, code[:stop])


@given(gaps=st.lists(st.integers(0, 12), min_size=1, max_size=80), valued=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_gaps_about_three_come_back(gaps, valued, seed):
    rng = np.random.default_rng(seed)
    places = np.cumsum(np.array(gaps) + 1) - 1
    n_weights = int(places[-1]) + 1 + int(rng.integers(3))
    minus = np.zeros(places.size, np.uint32) if valued else rng.integers(2, size=places.size).astype(np.uint32)
    values = rng.normal(size=places.size).astype(np.float32) if valued else np.empty(0, np.float32)
    bounds = np.array([0, n_weights])
    bounds.setflags(write=False)
    update = Sparse((2 * places).astype(np.uint32) | minus, values, bounds, vector(1), "rice")
    want = np.zeros(n_weights, np.float32)
    want[places] = values if valued else 1 - 2.0 * minus
    np.testing.assert_array_equal(decoded(update), want)


def test_gaps_are_divided_by_three_where_that_is_shortest():
    rng = np.random.default_rng(3)
    places = np.flatnonzero(rng.random(50_000) < 0.2143)
    code = sparse(places, 50_000, "rice").encode(0, 50_000)
    assert code[1 + 3 + 2 + 4] == 31
    np.testing.assert_array_equal(np.flatnonzero(decoded(sparse(places, 50_000, "rice"))), places)


def test_rice_of_a_gap_far_above_the_others_comes_back():
    places = [*range(0, 2000, 2), 3_000_000]
    update = sparse(places, 3_000_001, "rice")
    assert np.flatnonzero(decoded(update)).tolist() == places


def test_auto_takes_the_smallest_packing():
    rng = np.random.default_rng(0)
    for share in (0.0005, 0.01, 0.2, 0.5, 0.9):
        places = np.flatnonzero(rng.random(20_000) < share)
        sizes = {name: sparse(places, 20_000, name).encode(0, 20_000).size for name in ("words", "rice", "bitmap")}
        assert sparse(places, 20_000, "auto").encode(0, 20_000).size == min(sizes.values())
    assert sizes["bitmap"] < sizes["rice"]


@pytest.mark.parametrize("share", [1e-4, 2e-4, 5e-4, 1e-3, *np.geomspace(2e-3, 0.36, 100).tolist(), 0.2143])
def test_rice_takes_at_most_3_percent_more_than_the_entropy_of_the_gaps(share):
    n_weights = 4_000_000 if share < 0.002 else 1_000_000
    places = np.flatnonzero(np.random.default_rng(1).random(n_weights) < share)
    bounds = np.array([0, n_weights])
    bounds.setflags(write=False)
    code = Sparse(2 * places.astype(np.uint32), np.empty(0, np.float32), bounds, vector(1), "rice").encode(0, n_weights)
    own = places.size / n_weights
    entropy = -(own * math.log2(own) + (1 - own) * math.log2(1 - own)) / own
    bits = 8 * (code.size - 13) / places.size  # without form, length, count, quantum and parameter
    assert bits - 1 <= 1.03 * entropy


def test_sections_of_layers_with_other_densities_have_their_own_rice_parameter():
    rng = np.random.default_rng(0)
    dense, thin = np.flatnonzero(rng.random(4000) < 0.2), 4000 + np.flatnonzero(rng.random(400_000) < 0.001)
    places = [*dense.tolist(), *thin.tolist()]
    one = sparse(places, 404_000, "rice").encode(0, 404_000)
    two = sparse(places, 404_000, "rice", layers=(0, 4000)).encode(0, 404_000)
    assert two.size < one.size - 100


def test_sections_of_tiny_layers_are_joined():
    layers = [0, 1000, 1010, 2010, 2020]
    places = [5, 700, 1300, 2000, 2900]
    assert (
        sparse(places, 3000, "auto", layers).encode(0, 3000).size == sparse(places, 3000, "auto").encode(0, 3000).size
    )


def test_sections_of_other_quanta_stay_apart():
    update = sparse([1, -3, 4], 6, "auto", (0, 2, 4), (1, 2, 3))
    assert decoded(update).tolist() == [0, 1, 0, -2, 3, 0]


def test_join_adds_every_code():
    codes = [update_of(codec, seed=number).encode(7, 2400) for number, codec in enumerate(CODECS)]
    one, other = np.zeros(2393, np.float32), np.zeros(2393, np.float32)
    add(one, join(codes), 0.25)
    for code in codes:
        add(other, code, 0.25)
    np.testing.assert_array_equal(one, other)


def test_join_of_nothing_is_refused():
    with pytest.raises(ValueError, match="concatenate"):
        join([])


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (3, 3), (5, 2), (-1, 4), (0, 2501)])
def test_encode_of_no_range_is_refused(start, stop):
    with pytest.raises(ValueError, match="one or more of the 2500 weights"):
        update_of(Half()).encode(start, stop)


def test_add_takes_read_only_and_strided_codes():
    code = update_of(Threshold(tau=4.0)).encode(0, 2500)
    frozen = np.frombuffer(code.tobytes(), np.uint8)
    strided = np.repeat(code, 2)[::2]
    targets = [np.zeros(2500, np.float32) for _ in range(3)]
    for target, each in zip(targets, (code, frozen, strided), strict=True):
        add(target, each)
    assert targets[0].any()
    assert (targets[0] == targets[1]).all()
    assert (targets[0] == targets[2]).all()


@pytest.mark.parametrize("scale", [math.nan, math.inf, 1e39])
def test_add_of_no_scale_is_refused(scale):
    with pytest.raises(ValueError, match="scale must be finite"):
        add(np.zeros(2500, np.float32), update_of(Half()).encode(0, 2500), scale)


def test_add_of_other_types_is_refused():
    code = update_of(Half(), 2).encode(0, 2)
    frozen = np.zeros(2, np.float32)
    frozen.setflags(write=False)
    for target, given_code in (
        (np.zeros(2), code),
        (frozen, code),
        (np.zeros((1, 2), np.float32), code),
        (np.zeros(4, np.float32)[::2], code),
        (np.zeros(2, np.float32), code.astype(np.int64)),
    ):
        with pytest.raises(ValueError, match="uint8 is added to contiguous float32"):
            add(target, given_code)


ONE = struct.pack("<f", 1)
MINUS_0, LARGE = struct.pack("<f", -0.0), struct.pack("<f", 3e38)
NAN, INF, MINUS = struct.pack("<f", math.nan), struct.pack("<f", math.inf), struct.pack("<f", -1)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (b"", "ends in the middle"),
        (b"\x80", "longer than what is left"),
        (b"\x80\x00", "empty"),
        (b"\x80\x09", "longer than what is left"),
        (b"\x80\x88\x00", "longer than what is left"),  # 8, in more bytes than it takes
        (b"\x80\xff\xff\xff\xff\xff\xff", "longer than what is left"),
        (b"\x00\x08", "not where one of its range begins"),
        (b"\x80\x04\x80\x04", "not where one of its range begins"),
        (b"\x80\x04", "ends before its range does"),
        (b"\x80\x08\x80\x04", "ends before its range does"),
        (b"\x84\x08", "no known form"),
        (b"\x8b\x08", "no known form"),
        (b"\xff\x08", "no known form"),
        (b"\x81\x08\x00" + ONE, "declares no updates"),
        (b"\x81\x08\x09" + ONE, "more than it has weights"),
        (b"\x82\x08\xff\xff\xff\xff\x07" + ONE, "more than it has weights"),
        (b"\x81\x08\x01\x00\x00", "ends in the middle"),
        (b"\x81\x08\x01" + ONE + b"\x00\x00\x00", "ends in the middle"),
        (b"\x81\x08\x01" + NAN + b"\x00\x00\x00\x00", "not a number"),
        (b"\x81\x08\x01" + INF + b"\x00\x00\x00\x00", "infinite"),
        (b"\x81\x08\x01" + MINUS + b"\x00\x00\x00\x00", "out of range"),
        (b"\x81\x08\x01" + MINUS_0 + b"\x00\x00\x00\x00", "out of range"),
        (b"\x88\x08" + MINUS_0 + bytes(16), "out of range"),
        (b"\x89\x08" + MINUS_0 + bytes(8), "out of range"),
        (b"\x81\x08\x01" + LARGE + b"\x00\x00\x00\x00", "more than any sum bears"),
        (b"\x85\x08\x01" + LARGE + b"\x00\x00\x00\x00", "more than any sum bears"),
        (b"\x88\x08" + struct.pack("<f", 1e15) + bytes(16), "more than any sum bears"),
        (b"\x89\x08" + struct.pack("<f", 1e18) + bytes(8), "more than any sum bears"),
        (b"\x8a\x08" + ONE + LARGE + b"\x00", "more than any sum bears"),
        (2 * (b"\x81\x08\x01" + struct.pack("<f", 1.2e19) + b"\x00\x00\x00\x00"), "more than any sum bears"),
        (1025 * b"\x80\x08", "more than 1024 passes"),
        (b"\x81\x08\x01" + ONE + b"\x10\x00\x00\x00", "leave its range"),
        (b"\x81\x08\x01" + ONE + b"\xff\xff\xff\xff", "leave its range"),
        (b"\x81\x08\x02" + ONE + b"\x04\x00\x00\x00\x05\x00\x00\x00", "do not ascend"),
        (b"\x81\x08\x02" + ONE + b"\x04\x00\x00\x00\x02\x00\x00\x00", "do not ascend"),
        (b"\x82\x08\x01" + ONE, "ends in the middle"),
        (b"\x82\x08\x01" + ONE + b"\x20\x01", "out of range"),  # 32 low bits
        (b"\x82\x08\x01" + ONE + b"\x1f\x00\x00", "ends in the middle"),  # by three: no one
        (b"\x82\x08\x01" + ONE + b"\x1f\xc0", "ends in the middle"),  # no second bit of the remainder, no sign
        (b"\x82\x08\x01" + ONE + b"\x1f\x80", "ends in the middle"),  # no remainder
        (b"\x82\x08\x01" + ONE + b"\x1f\x1c", "leave its range"),  # 2 x 3 + 2
        (b"\x82\x08\x01" + ONE + b"\x1f\x41", "bits where none belong"),
        (b"\x82\x08\x01" + ONE + b"\x00\x00\x00", "ends in the middle"),  # no one
        (b"\x82\x08\x01" + ONE + b"\x00\x80", "ends in the middle"),  # no sign
        (b"\x82\x08\x01" + ONE + b"\x00\x00\x01", "leave its range"),  # a gap of 8
        (b"\x82\x08\x01" + ONE + b"\x1e\xff\xff\xff\xff\xff", "leave its range"),
        (b"\x82\x08\x01" + ONE + b"\x00\x05", "bits where none belong"),
        (b"\x83\x08\x01" + ONE + b"\x00", "ends in the middle"),
        (b"\x83\x08\x01" + ONE + b"\x02\x01", "bits where none belong"),
        (b"\x83\x08\x01" + ONE + b"\x00\x03", "another number than it has"),
        (b"\x83\x08\x02" + ONE + b"\x00\x01", "another number than it has"),
        (b"\x83\x07\x01" + ONE + b"\x00\x80\x00\x01", "bits where none belong"),
        (b"\x85\x08\x01" + NAN + b"\x00\x00\x00\x00", "not a number"),
        (b"\x85\x08\x01" + ONE + b"\x08\x00\x00\x00", "leave its range"),
        (b"\x85\x08\x02" + ONE, "ends in the middle"),
        (b"\x88\x08" + ONE + bytes(15), "ends in the middle"),
        (b"\x88\x08" + NAN + bytes(16), "not a number"),
        (b"\x88\x08" + ONE + bytes(15) + b"\x7c", "infinite"),
        (b"\x89\x08" + ONE + bytes(7), "ends in the middle"),
        (b"\x89\x08" + ONE + bytes(7) + b"\x80", "out of range"),
        (b"\x89\x08" + INF + bytes(8), "infinite"),
        (b"\x8a\x08" + ONE + ONE, "ends in the middle"),
        (b"\x8a\x08" + ONE + NAN + b"\x00", "not a number"),
        (b"\x8a\x07" + ONE + ONE + b"\x80\x00\x01", "bits where none belong"),
    ],
)
def test_add_of_what_encode_cannot_have_made_is_refused_and_adds_nothing(code, message):
    target = np.arange(8, dtype=np.float32)
    # behind a good code, nothing of this one may have been added either
    for given_code in (code, bytes([0x80, 8]) + code) if code else (code,):
        with pytest.raises(WireError, match=message):
            add(target, np.frombuffer(given_code, np.uint8))
    good = update_of(Half(), 8).encode(0, 8).tobytes()
    if code:
        with pytest.raises(WireError, match=message):
            add(target, np.frombuffer(good + code, np.uint8))
    assert target.tolist() == list(range(8))


def test_add_of_quantum_times_scale_beyond_float32_is_refused():
    code = sparse([1], 8, "words", quanta=(1e30,)).encode(0, 8)
    with pytest.raises(WireError, match="infinite"):
        add(np.zeros(8, np.float32), code, 1e30)


@pytest.mark.parametrize("size", [1, 2499, 2501, 5000])
def test_add_to_another_number_of_weights_is_refused(size):
    for codec in CODECS:
        code = update_of(codec).encode(0, 2500)
        for each in (code, join([code, code])):
            with pytest.raises(WireError, match="weights"):
                add(np.zeros(size, np.float32), each)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_every_truncation_is_refused(codec):
    code = update_of(codec, 300).encode(0, 300)
    n_parts = len(getattr(update_of(codec, 300), "parts", (0,)))
    target = np.zeros(300, np.float32)
    accepted = 0
    for stop in range(code.size):
        try:
            add(target, code[:stop])
            accepted += 1
        except WireError:
            pass
    # a joined code is complete after each of its parts
    assert accepted == n_parts - 1


def refused_or_right(code: np.ndarray, n_weights: int) -> bool:
    """Whether a code is refused, as it has to be; if it is not, what came of it is what the page says, and finite."""
    target = np.zeros(n_weights, np.float32)
    try:
        want = read(code.tobytes(), n_weights)
    except RefusedError:
        with pytest.raises(WireError):
            add(target, code)
        assert not target.any()
        return True
    add(target, code)
    assert np.isfinite(target).all()
    np.testing.assert_array_equal(target, want)
    return False


def test_mutated_codes_are_refused_or_decode():
    rng = np.random.default_rng(0)
    codes = [update_of(codec, 300, seed).encode(0, 300) for codec in CODECS for seed in range(3)]
    refused = 0
    for _ in range(20_000):
        code = codes[rng.integers(len(codes))].copy()
        for _ in range(rng.integers(1, 4)):
            match rng.integers(4):
                case 0:
                    code[rng.integers(code.size)] ^= 1 << rng.integers(8)
                case 1:
                    code[rng.integers(code.size)] = rng.integers(256)
                case 2:
                    at = rng.integers(code.size)
                    code = np.concatenate([code[:at], code[at + rng.integers(4) :]])
                case _:
                    at = rng.integers(code.size + 1)
                    new = rng.integers(256, size=rng.integers(1, 5)).astype(np.uint8)
                    code = np.concatenate([code[:at], new, code[at:]])
            if not code.size:
                code = np.zeros(1, np.uint8)
        refused += refused_or_right(code, 300)
    assert 5000 < refused < 20_000


def test_random_codes_are_refused_or_decode():
    rng = np.random.default_rng(1)
    forms = np.array([0x80 | form for form in range(11)], np.uint8)
    for _ in range(20_000):
        code = rng.integers(256, size=rng.integers(0, 40)).astype(np.uint8)
        n_weights = int(rng.integers(1, 100))
        if code.size > 1:
            code[0] = rng.choice(forms)
            code[1] = n_weights
        refused_or_right(code, n_weights)


@given(code=st.binary(max_size=60), n_weights=st.integers(0, 300))
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_refused_or_decode(code, n_weights):
    refused_or_right(np.frombuffer(code, np.uint8), n_weights)


@pytest.mark.parametrize("form", [0x81, 0x82, 0x83, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A])
def test_huge_declared_counts_allocate_nothing(form):
    target = np.zeros(1_000_000, np.float32)
    size = b"\xc0\x84\x3d"  # 1,000,000
    code = np.frombuffer(bytes([form]) + size + size + ONE + bytes(40), np.uint8)
    add(np.zeros(8, np.float32), np.frombuffer(b"\x80\x08", np.uint8))
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            add(target, code)
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()


def test_code_of_float16_whose_rate_makes_an_infinity_is_refused():
    rate = np.array([3e38], "<f4").tobytes()
    code = np.frombuffer(bytes([0x88, 0x01]) + rate + b"\xff\x7b", np.uint8)
    target = np.zeros(1, np.float32)
    with pytest.raises(WireError, match="infinite"):
        add(target, code)
    assert target[0] == 0
