from itertools import pairwise

import pytest
from dnn_networks import FURTHER, MNIST, RELU, SMALL, TANH
from pydantic import ValidationError

from operators.dnn import (
    AvgPool,
    BatchNorm,
    Conv,
    Dense,
    Dropout,
    GlobalAvgPool,
    MaxPool,
    Model,
    ModelSpec,
    Residual,
)
from operators.dnn.spec import statistic_ranges, steps, weight_ranges

ALL = [MNIST, *SMALL.values(), *FURTHER.values()]

# Two residuals, one within the body of the other, which has a shortcut of its own.
NESTED = ModelSpec(
    input=(3, 8, 8),
    layers=(
        Conv(filters=4, kernel=3, padding=1),
        Residual(
            layers=(
                Conv(filters=6, kernel=3, padding=1, stride=2),
                Residual(layers=(BatchNorm(), Dropout(rate=0.5))),
            ),
            shortcut=(Conv(filters=6, kernel=1, stride=2), BatchNorm()),
        ),
        GlobalAvgPool(),
        Dense(units=2),
    ),
)


def test_mnist_network_has_the_papers_number_of_weights():
    assert Model(MNIST).n_weights == 59_590
    assert Model(MNIST).n_classes == 10


def test_imagenet_network_has_the_papers_number_of_weights():
    layers = []
    for filters, kernel in ((32, 5), (64, 5), (256, 3)):
        layers += [Conv(filters=filters, kernel=kernel), RELU, MaxPool()]
    spec = ModelSpec(input=(3, 100, 100), layers=(*layers, Dense(units=800), RELU, Dense(units=100)))
    # 32*75+32, 64*800+64, 256*576+256, 800*25600+800, 100*800+100
    assert Model(spec).n_weights == 2_432 + 51_264 + 147_712 + 20_480_800 + 80_100


def test_shapes_of_mnist_network_follow_each_layer():
    sides = [28, 24, 24, 12, 8, 8, 4, 1, 1, 1, 1, 1]
    assert [shape[1] for shape in MNIST.shapes()] == sides
    assert [shape[0] for shape in MNIST.shapes()] == [1, 10, 10, 10, 20, 20, 20, 100, 100, 200, 200, 10]


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Conv(filters=4, kernel=3), (4, 5, 7)),
        (Conv(filters=4, kernel=3, padding=1), (4, 7, 9)),
        (Conv(filters=4, kernel=3, stride=2), (4, 3, 4)),
        (Conv(filters=4, kernel=3, padding=2, stride=3), (4, 3, 4)),
        (MaxPool(), (2, 3, 4)),
        (MaxPool(size=3, stride=2), (2, 3, 4)),
        (AvgPool(), (2, 3, 4)),
        (AvgPool(size=2, stride=4), (2, 2, 2)),
        (GlobalAvgPool(), (2, 1, 1)),
        (Dropout(rate=0.5), (2, 7, 9)),
        (BatchNorm(), (2, 7, 9)),
        (Residual(layers=(Conv(filters=2, kernel=3, padding=1), RELU)), (2, 7, 9)),
        (Residual(layers=(MaxPool(size=3, stride=2),), shortcut=(AvgPool(),)), (2, 3, 4)),
        (Dense(units=6), (6, 1, 1)),
        (RELU, (2, 7, 9)),
    ],
)
def test_output_shape_of_layer_on_seven_by_nine_is_as_worked_out(layer, shape):
    assert layer.output_shape((2, 7, 9)) == shape


@pytest.mark.parametrize("spec", ALL)
def test_ranges_tile_the_vector_without_gap_or_overlap(spec):
    ranges = weight_ranges(spec)
    assert ranges[0].start == 0
    for earlier, later in pairwise(ranges):
        assert earlier.stop == later.start
    assert ranges[-1].stop == Model(spec).n_weights


def test_ranges_of_mnist_network_are_named_by_kind_and_count():
    assert weight_ranges(MNIST) == [
        ("conv1.weight", 0, 250, (10, 1, 5, 5)),
        ("conv1.bias", 250, 260, (10,)),
        ("conv2.weight", 260, 5_260, (20, 10, 5, 5)),
        ("conv2.bias", 5_260, 5_280, (20,)),
        ("conv3.weight", 5_280, 37_280, (100, 20, 4, 4)),
        ("conv3.bias", 37_280, 37_380, (100,)),
        ("dense1.weight", 37_380, 57_380, (200, 100)),
        ("dense1.bias", 57_380, 57_580, (200,)),
        ("dense2.weight", 57_580, 59_580, (10, 200)),
        ("dense2.bias", 59_580, 59_590, (10,)),
    ]


def test_steps_of_nested_residuals_read_the_arrays_that_they_should():
    assert [(step.path[-1], step.sources, step.shape, step.output) for step in steps(NESTED)] == [
        ("layer 0 (conv)", (0,), (3, 8, 8), (4, 8, 8)),
        ("body layer 0 (conv)", (1,), (4, 8, 8), (6, 4, 4)),
        ("body layer 0 (batch_norm)", (2,), (6, 4, 4), (6, 4, 4)),
        ("body layer 1 (dropout)", (3,), (6, 4, 4), (6, 4, 4)),
        ("body layer 1 (residual)", (4, 2), (6, 4, 4), (6, 4, 4)),
        ("shortcut layer 0 (conv)", (1,), (4, 8, 8), (6, 4, 4)),
        ("shortcut layer 1 (batch_norm)", (6,), (6, 4, 4), (6, 4, 4)),
        ("layer 1 (residual)", (5, 7), (4, 8, 8), (6, 4, 4)),
        ("layer 2 (global_avg_pool)", (8,), (6, 4, 4), (6, 1, 1)),
        ("layer 3 (dense)", (9,), (6, 1, 1), (2, 1, 1)),
    ]
    assert steps(NESTED)[3].path == ("layer 1 (residual)", "body layer 1 (residual)", "body layer 1 (dropout)")


def test_shapes_of_nested_residuals_are_those_of_the_outermost_layers():
    assert NESTED.shapes() == [(3, 8, 8), (4, 8, 8), (6, 4, 4), (6, 1, 1), (2, 1, 1)]


def test_ranges_of_nested_residuals_go_through_the_body_before_the_shortcut():
    assert [(name, start, shape) for name, start, _, shape in weight_ranges(NESTED)] == [
        ("conv1.weight", 0, (4, 3, 3, 3)),
        ("conv1.bias", 108, (4,)),
        ("conv2.weight", 112, (6, 4, 3, 3)),
        ("conv2.bias", 328, (6,)),
        ("batch_norm1.weight", 334, (6,)),
        ("batch_norm1.bias", 340, (6,)),
        ("conv3.weight", 346, (6, 4, 1, 1)),
        ("conv3.bias", 370, (6,)),
        ("batch_norm2.weight", 376, (6,)),
        ("batch_norm2.bias", 382, (6,)),
        ("dense1.weight", 388, (2, 6)),
        ("dense1.bias", 400, (2,)),
    ]


def test_statistics_of_nested_residuals_have_a_vector_of_their_own():
    assert statistic_ranges(NESTED) == [
        ("batch_norm1.mean", 0, 6, (6,)),
        ("batch_norm1.variance", 6, 12, (6,)),
        ("batch_norm2.mean", 12, 18, (6,)),
        ("batch_norm2.variance", 18, 24, (6,)),
    ]
    assert statistic_ranges(MNIST) == []


@pytest.mark.parametrize("spec", ALL)
def test_json_of_spec_read_back_is_equal(spec):
    assert ModelSpec.model_validate_json(spec.model_dump_json()) == spec


def test_json_with_kinds_selects_the_layers():
    text = (
        '{"input": [1, 2, 2], "layers": [{"kind": "conv", "filters": 3, "kernel": 2}, {"kind": "dense", "units": 2}]}'
    )
    assert ModelSpec.model_validate_json(text).layers == (Conv(filters=3, kernel=2), Dense(units=2))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((Conv(filters=2, kernel=3), MaxPool(size=5), Dense(units=2)), r"layer 1 \(max_pool\).*\(2, 4, 4\).*size <= 4"),
        ((Conv(filters=2, kernel=7), Dense(units=2)), r"layer 0 \(conv\).*7x7.*\(1, 6, 6\).*kernel <= 6"),
        ((Conv(filters=2, kernel=2, padding=2), Dense(units=2)), r"layer 0 \(conv\): padding 2 must be below"),
        ((AvgPool(size=7), Dense(units=2)), r"layer 0 \(avg_pool\): a 7x7 window does not fit.*use size <= 6"),
        (
            (TANH, Residual(layers=(RELU, Conv(filters=1, kernel=8))), Dense(units=2)),
            r"layer 1 \(residual\), body layer 1 \(conv\): a 8x8 kernel.*\(1, 6, 6\)",
        ),
        (
            (Residual(layers=(Residual(layers=(RELU,), shortcut=(TANH, MaxPool(size=9))),)), Dense(units=2)),
            r"layer 0 \(residual\), body layer 0 \(residual\), shortcut layer 1 \(max_pool\): a 9x9 window",
        ),
        (
            (Residual(layers=(Conv(filters=4, kernel=3, padding=1, stride=2),)), Dense(units=2)),
            r"layer 0 \(residual\): the body's output has shape \(4, 3, 3\), but the shortcut's \(1, 6, 6\): "
            r"use shortcut=\(Conv\(filters=4, kernel=1, stride=2\),\)",
        ),
        (
            (Residual(layers=(Conv(filters=4, kernel=2),)), Dense(units=2)),
            r"shape \(4, 5, 5\), but.*\(1, 6, 6\): change the padding.*a shortcut from \(1, 6, 6\) to \(4, 5, 5\)",
        ),
        ((Dense(units=2), RELU), r"last layer must be dense.*layer 1 is activation.*append Dense"),
        ((), r"last layer must be dense.*no layers"),
    ],
)
def test_spec_with_layers_that_do_not_fit_names_layer_shape_and_fix(layers, message):
    with pytest.raises(ValueError, match=message):
        ModelSpec(input=(1, 6, 6), layers=layers)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Dropout, {"rate": 1.0}),
        (Dropout, {"rate": -0.1}),
        (Dropout, {"rate": float("nan")}),
        (BatchNorm, {"momentum": 0}),
        (BatchNorm, {"momentum": 1.1}),
        (BatchNorm, {"epsilon": 0}),
        (BatchNorm, {"epsilon": float("inf")}),
        (Residual, {"layers": ()}),
        (AvgPool, {"stride": 0}),
        (GlobalAvgPool, {"size": 2}),
    ],
)
def test_layer_with_field_out_of_range_is_refused(kind, fields):
    with pytest.raises(ValidationError):
        kind(**fields)


@pytest.mark.parametrize(
    "fields",
    [{"units": 0}, {"units": 2, "bias": False}, {"units": 2, "kind": "conv"}],
)
def test_dense_with_bad_field_is_refused(fields):
    with pytest.raises(ValidationError):
        Dense(**fields)


def test_layer_assigned_to_is_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        Dense(units=2).units = 3
