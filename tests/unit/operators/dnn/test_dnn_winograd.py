from fractions import Fraction

import numba
import numpy as np
import pytest
from dnn_networks import MNIST, RELU, TANH, batch_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from operators.dnn import BatchNorm, Conv, Dense, MaxPool, Model, ModelSpec, Residual, reference
from operators.dnn.init import initial_statistics
from operators.dnn.kernels import conv, network, table, winograd
from operators.dnn.kernels.winograd_lines import OF_INPUTS, SIDES, TILE, of_outputs, of_weights
from operators.dnn.kernels.winograd_plan import tile_elements, tile_plan
from operators.dnn.program import compile_program

GUARD = 1024


def forward_units(spec, batch=1):
    """Of every convolution that stays one, whether it is done by tiles."""
    units = {conv.conv_forward.address(np.float32): False, winograd.winograd_forward.address(np.float32): True}
    addresses = compile_program(spec, batch).table[:, table.FORWARD]
    return [units[address] for address in addresses.tolist() if address in units]


def run(spec, weights, images, labels, out, logits, batch):
    """Train where there are labels, else evaluate, over a workspace of NaN; nothing behind it may be written."""
    program = compile_program(spec, batch, weights.dtype)
    buffer = np.full(program.elements + GUARD, np.nan, weights.dtype)
    arrays = weights.view(), images.view(), np.array(labels, np.int64)
    for array in arrays:
        array.flags.writeable = False
    statistics, training = initial_statistics(spec).astype(weights.dtype), len(labels) > 0
    loss, _ = network.run(
        program.table, arrays[0], statistics, *arrays[1:], out, logits, buffer, program.chunk, 0.5, 0, training
    )
    assert np.isnan(buffer[program.elements :]).all()
    return loss


def tiled_gradient(spec, weights, images, labels, batch=None):
    """The gradient in float64, in a workspace for up to `batch` images."""
    out = np.full_like(weights, np.nan)
    rows = images.reshape(len(images), -1)
    return out, run(spec, weights, rows, labels, out, np.empty((0, 0)), batch or len(images))


@pytest.mark.parametrize("side", SIDES)
def test_maps_of_a_tile_give_exactly_the_sums_of_products(side):
    """Integers of a tile and a kernel, in fractions: the matrices are decimal but for G's thirds, fifths and ninths."""
    rng = np.random.default_rng(side)
    exact = np.vectorize(lambda value: Fraction(value).limit_denominator(1000), otypes=[object])
    tile, taps = rng.integers(-9, 10, TILE), rng.integers(-9, 10, side)
    products = (exact(of_weights(side)) @ taps) * (exact(OF_INPUTS) @ tile)
    assert (exact(of_outputs(side).T) @ products).tolist() == np.correlate(tile, taps, "valid").tolist()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("padding", [0, 2])
def test_convolutions_of_channels_and_filters_enough_are_done_by_tiles(side, padding):
    def units(filters, stride=1):
        layers = Conv(filters=filters, kernel=side, padding=padding, stride=stride), Dense(units=2)
        return forward_units(ModelSpec(input=(16, 14, 14), layers=layers))

    assert units(16) == [True]
    assert units(1) == [False]
    assert units(16, stride=2) == [False]


def test_first_convolution_of_the_papers_network_is_direct_and_the_second_by_tiles():
    assert forward_units(MNIST) == [False, True]


@st.composite
def tiled_networks(draw):
    side = draw(st.sampled_from(list(SIDES)))
    padding = draw(st.integers(0, side - 1))
    least = max(1, side - 2 * padding) + 3
    shape = draw(st.integers(9, 14)), draw(st.integers(least, least + 10)), draw(st.integers(least, least + 6))
    layers = [Conv(filters=draw(st.integers(9, 26)), kernel=side, padding=padding)]
    size = draw(st.integers(0, 3))
    rest = [RELU, MaxPool(size=size, stride=draw(st.none() | st.integers(1, 4)))] if size else [TANH]
    layers += draw(st.permutations(rest)) if draw(st.booleans()) else rest[: draw(st.integers(0, len(rest)))]
    # so that the input needs a gradient or not, all images make one chunk or not, and several read it or not
    first = draw(st.sampled_from([(), (TANH,), (Conv(filters=shape[0], kernel=1),), (BatchNorm(epsilon=0.1),)]))
    if side % 2 and draw(st.booleans()):
        same = Conv(filters=shape[0], kernel=side, padding=side // 2)
        first = (*first, Residual(layers=(same, TANH)))
    return ModelSpec(input=shape, layers=(*first, *layers, Dense(units=2)))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    spec=tiled_networks(),
    batch=st.integers(1, 6) | st.sampled_from([15, 16, 17, 28, 31, 32, 33, 40]),
    more=st.sampled_from([0, 0, 1, 30]),
    seed=st.integers(0, 1000),
)
def test_gradient_by_tiles_equals_reference_within_its_workspace(spec, batch, more, seed):
    assume(forward_units(spec)[-1])
    weights, images, labels = batch_of(spec, batch, np.float64, seed)
    expected, expected_loss, _ = reference.gradient(spec, weights, images, labels, 0.5)
    out, loss = tiled_gradient(spec, weights, images, labels, batch + more)
    np.testing.assert_allclose(out, expected, rtol=1e-8, atol=1e-9)
    assert loss == pytest.approx(expected_loss, rel=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_by_tiles_are_the_same_bits_in_mini_batches_of_any_size(dtype):
    layers = Conv(filters=12, kernel=5), RELU, MaxPool(size=2), Conv(filters=12, kernel=3, padding=1), Dense(units=3)
    spec = ModelSpec(input=(9, 14, 14), layers=layers)
    assert forward_units(spec) == [True, True]
    weights, images, _ = batch_of(spec, 40, dtype)
    found = []
    for batch in (1, 7, 16, 17, 31, 32, 40):
        logits = np.empty((40, 3), dtype)
        for begin in range(0, 40, batch):
            part = images[begin : begin + batch].reshape(-1, 9 * 14 * 14)
            run(spec, weights, part, (), np.empty_like(weights), logits[begin : begin + batch], batch)
        found.append(logits.tobytes())
    assert len(set(found)) == 1


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("pool", [0, 2])
def test_a_plan_for_fewer_images_fits_into_the_elements_for_more(side, pool):
    rng = np.random.default_rng(side)
    for _ in range(60):
        channels, filters, padding = (*rng.integers(1, 40, 2).tolist(), int(rng.integers(0, side)))
        height, width = (rng.integers(0, 20, 2) + max(1, side - 2 * padding)).tolist()
        out_height, out_width = height + 2 * padding - side + 1, width + 2 * padding - side + 1
        row = np.zeros(table.COLUMNS, np.int64)
        columns = {
            table.CHANNELS: channels, table.OUT_CHANNELS: filters, table.KERNEL: side, table.PADDING: padding,
            table.WIDTH: width, table.OUT_HEIGHT: out_height, table.OUT_WIDTH: out_width, table.POOL: pool,
        }  # fmt: skip
        for column, value in columns.items():
            row[column] = value
        most = int(rng.integers(1, 70))
        elements = tile_elements((channels, height, width), (filters, out_height, out_width), side, padding, most)
        for batch in range(1, most + 1):
            plan = plan_of(row, batch)
            assert plan.outputs + TILE * filters * plan.output_step - plan.zeros <= elements


@numba.njit
def plan_of(row, batch):
    return tile_plan(row, batch)


@pytest.mark.parametrize("side", SIDES)
def test_error_of_tiles_in_float32_is_a_few_times_that_of_its_rounding(side):
    layers = Conv(filters=16, kernel=side), TANH, Conv(filters=16, kernel=side, padding=side // 2), Dense(units=4)
    spec = ModelSpec(input=(16, 20, 20), layers=layers, init="glorot")
    assert forward_units(spec) == [True, True]
    model = Model(spec)
    weights = model.initial(np.random.default_rng(1))
    _, images, labels = batch_of(spec, 8)
    out = np.empty_like(weights)
    model.gradient(
        weights, images, labels, out, model.workspace(8), 0.125, statistics=model.initial_statistics(), seed=0
    )
    expected, _, _ = reference.gradient(spec, weights.astype(np.float64), images.astype(np.float64), labels, 0.125)
    assert np.linalg.norm(out - expected) < 5e-6 * np.linalg.norm(expected)


def test_more_channels_and_filters_than_are_read_at_once_equal_reference():
    spec = ModelSpec(input=(130, 5, 6), layers=(TANH, Conv(filters=140, kernel=3, padding=1), RELU, Dense(units=2)))
    assert forward_units(spec) == [True]
    first = ModelSpec(input=(3, 5, 6), layers=(Conv(filters=130, kernel=1), *spec.layers))
    weights, images, labels = batch_of(first, 3, np.float64)
    expected, _, _ = reference.gradient(first, weights, images, labels, 0.5)
    np.testing.assert_allclose(tiled_gradient(first, weights, images, labels)[0], expected, rtol=1e-8, atol=1e-9)
