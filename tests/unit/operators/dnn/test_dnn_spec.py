from itertools import pairwise

import pytest
from dnn_networks import MNIST, RELU, SMALL
from pydantic import ValidationError

from operators.dnn import Conv, Dense, MaxPool, Model, ModelSpec
from operators.dnn.spec import weight_ranges


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
        (Dense(units=6), (6, 1, 1)),
        (RELU, (2, 7, 9)),
    ],
)
def test_output_shape_of_layer_on_seven_by_nine_is_as_worked_out(layer, shape):
    assert layer.output_shape((2, 7, 9)) == shape


@pytest.mark.parametrize("spec", [MNIST, *SMALL.values()])
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


@pytest.mark.parametrize("spec", [MNIST, *SMALL.values()])
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
        ((Dense(units=2), RELU), r"last layer must be dense.*layer 1 is activation.*append Dense"),
        ((), r"last layer must be dense.*no layers"),
    ],
)
def test_spec_with_layers_that_do_not_fit_names_layer_shape_and_fix(layers, message):
    with pytest.raises(ValueError, match=message):
        ModelSpec(input=(1, 6, 6), layers=layers)


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
