import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from dnn_networks import MNIST

from dataflow.errors import ConfigError
from dataflow.runtime.starting import ONE_THREAD
from operators.dnn import Model, TorchSpec, build_network

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ako-dataflow[torch]'")
torch.set_num_threads(1)  # as in a job process

import safetensors.torch  # noqa: E402
import torch_networks as nets  # noqa: E402

from operators.dnn.torch_random import Pass  # noqa: E402

IMAGES = np.random.default_rng(1).normal(size=(6, 2, 4, 4)).astype(np.float32)
LABELS = np.array([0, 1, 2, 0, 2, 1])
PAIRS = np.array([[1, 2], [3, -4], [0.5, 0.25]], np.float32).reshape(3, 1, 1, 2)


def network(factory=nets.Normed, arguments=None, shape=(2, 4, 4), classes=3, **fields):
    return build_network(
        TorchSpec(factory=factory, arguments=arguments or {}, input=shape, classes=classes, device="cpu", **fields)
    )


def pairs(factory=nets.dense, **fields):
    return network(factory, shape=(1, 1, 2), classes=2, **fields)


def start(net, seed=0):
    return net.initial(np.random.default_rng(seed)), net.initial_statistics()


def gradient(net, weights, statistics, images=IMAGES, labels=LABELS, scale=0.25, seed=5, workspace=None):
    """The gradient, the statistics after it, the loss and the number of correct images."""
    out, advanced = np.full_like(weights, np.nan), statistics.copy()
    workspace = workspace or net.workspace(len(images))
    result = net.gradient(weights, images, labels, out, workspace, scale, statistics=advanced, seed=seed)
    return out, advanced, *result


def drawing(net):
    """Which passes take turns, by name."""
    return {each.value: net._random.draws(each) for each in Pass}


def plain(net, weights, statistics):
    """The module by itself, with these weights and statistics."""
    module = nets.Normed()
    module.load_state_dict({name: torch.tensor(each) for name, each in net.tensors(weights, statistics).items()})
    return module


def test_torch_layout_is_the_trained_parameters_in_order():
    net = network()
    assert [(each.name, each.start, each.shape) for each in net.ranges] == [
        ("conv.weight", 0, (3, 2, 3, 3)),
        ("norm.weight", 54, (3,)),
        ("norm.bias", 57, (3,)),
        ("dense.weight", 60, (5, 48)),
        ("dense.bias", 300, (5,)),
        ("flat.weight", 305, (5,)),
        ("flat.bias", 310, (5,)),
        ("last.weight", 315, (3, 5)),
        ("last.bias", 330, (3,)),
    ]
    assert (net.n_weights, net.n_classes) == (333, 3)
    assert net.n_statistics == (3 + 3 + 3) + (5 + 5 + 3)  # mean, variance, a counter in three floats


def test_torch_tensors_are_the_state_dict_and_come_back_bit_for_bit():
    net = network()
    weights, statistics = start(net)
    _, statistics, *_ = gradient(net, weights, statistics)
    tensors = net.tensors(weights, statistics)
    state = nets.Normed().state_dict()
    assert tensors.keys() == state.keys()
    assert {name: str(each.dtype) for name, each in tensors.items()} == {
        name: str(each.numpy().dtype) for name, each in state.items()
    }
    again = net.vectors(tensors)
    assert again[0].tobytes() == weights.tobytes()
    assert again[1].tobytes() == statistics.tobytes()


def test_torch_gradient_and_statistics_equal_autograd_done_plainly():
    net = network()
    weights, statistics = start(net)
    out, advanced, loss, correct = gradient(net, weights, statistics)
    module = plain(net, weights, statistics)
    logits = module(torch.tensor(IMAGES))
    total = torch.nn.functional.cross_entropy(logits, torch.tensor(LABELS), reduction="sum")
    (0.25 * total).backward()
    want = torch.cat([parameter.grad.flatten() for parameter in module.parameters()]).numpy()
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-7)
    assert loss == pytest.approx(total.item(), rel=1e-6)
    assert correct == int((logits.argmax(1) == torch.tensor(LABELS)).sum())
    for name, tensor in module.state_dict().items():
        np.testing.assert_allclose(net.tensors(weights, advanced)[name], tensor.numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("frozen", [False, True])
def test_torch_module_keeps_the_layout_that_its_factory_chose_and_vectors_are_in_c_order(frozen):
    net, other = network(nets.convolutions, {"frozen": frozen}), network(nets.channels_last, {"frozen": frozen})
    weights, statistics = start(net)
    assert start(other)[0].tobytes() == weights.tobytes()
    workspace = other.workspace(len(IMAGES))
    strides = [parameter.stride() for parameter in workspace.module.parameters()]
    assert strides != [parameter.stride() for parameter in net.workspace(1).module.parameters()]
    for _ in range(2):
        found = gradient(other, weights, statistics, workspace=workspace)
        assert [parameter.stride() for parameter in workspace.module.parameters()] == strides
    want = gradient(net, weights, statistics)
    np.testing.assert_allclose(found[0], want[0], rtol=1e-4, atol=1e-6)
    assert found[2] == pytest.approx(want[2], rel=1e-5)
    tensors = other.tensors(weights, statistics)
    assert {name: each.tobytes() for name, each in tensors.items()} == {
        name: each.tobytes() for name, each in net.tensors(weights, statistics).items()
    }
    assert other.vectors(tensors)[0].tobytes() == weights.tobytes()


def test_torch_two_batches_advance_the_statistics_one_after_the_other():
    net = network()
    weights, statistics = start(net)
    _, once, *_ = gradient(net, weights, statistics, IMAGES[:2], LABELS[:2])
    _, twice, *_ = gradient(net, weights, once, IMAGES[2:], LABELS[2:])
    module = plain(net, weights, statistics)
    module(torch.tensor(IMAGES[:2]))
    module(torch.tensor(IMAGES[2:]))
    got = net.tensors(weights, twice)
    np.testing.assert_allclose(got["flat.running_var"], module.flat.running_var.numpy(), rtol=1e-5)
    assert got["norm.num_batches_tracked"].tolist() == 2


def test_torch_counter_beyond_what_a_float_holds_stays_exact():
    net = network()
    weights, statistics = start(net)
    tensors = net.tensors(weights, statistics) | {"norm.num_batches_tracked": np.array(2**40 + 1)}
    _, advanced, *_ = gradient(net, *net.vectors(tensors))
    counter = net.tensors(weights, advanced)["norm.num_batches_tracked"]
    assert counter.dtype == np.int64
    assert int(counter) == 2**40 + 2


@pytest.mark.parametrize("frozen", [False, True])
def test_torch_tensors_with_several_names_are_in_files_by_all_and_in_the_vectors_once(frozen):
    net = pairs(nets.Tied, arguments={"frozen": frozen})
    weights, statistics = start(net)
    assert len(weights) + len(statistics) == 4 + (2 + 2 + 2 + 4) + (2 + 2) + (2 + 2 + 3)
    labels = np.array([0, 1, 1])
    out, advanced, *_ = gradient(net, weights, statistics, PAIRS, labels, scale=1.0)

    module = nets.Tied(frozen)
    state = safetensors.torch.load(safetensors.numpy.save(net.tensors(weights, statistics)))
    module.load_state_dict(state)
    assert {"one.weight", "two.weight", "norm.running_mean", "again.running_mean"} <= state.keys()
    torch.nn.functional.cross_entropy(module(torch.tensor(PAIRS)), torch.tensor(labels), reduction="sum").backward()
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    np.testing.assert_allclose(out, torch.cat([each.grad.flatten() for each in trained]).numpy(), rtol=1e-5, atol=1e-7)
    tensors = net.tensors(weights, advanced)
    for name, tensor in module.state_dict().items():
        np.testing.assert_allclose(tensors[name], tensor.numpy(), rtol=1e-6, atol=1e-7)

    once = {name: each for name, each in tensors.items() if name != "two.weight" and not name.startswith("again")}
    for kept in (tensors, once):
        again = net.vectors(kept)
        assert again[0].tobytes() == weights.tobytes()
        assert again[1].tobytes() == advanced.tobytes()


@pytest.mark.parametrize("persistent", [False, True])
def test_torch_buffer_by_two_names_is_one(persistent):
    net = pairs(nets.TwoNames, arguments={"persistent": persistent})
    weights, statistics = start(net)
    labels = np.array([0, 1, 1])
    workspace = net.workspace(3)
    for scale in (2, 3 if persistent else 2):
        module = nets.TwoNames()
        module.load_state_dict({n: torch.tensor(each) for n, each in net.tensors(weights, statistics).items()}, False)
        logits = module(torch.tensor(PAIRS))
        torch.nn.functional.cross_entropy(logits, torch.tensor(labels), reduction="sum").backward()
        want = torch.cat([each.grad.flatten() for each in module.parameters()]).numpy()
        assert float(1 + module.scale) == scale
        out, statistics, *_ = gradient(net, weights, statistics, PAIRS, labels, scale=1.0, workspace=workspace)
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-7)
    assert net.n_statistics == int(persistent)


def test_torch_buffer_by_two_names_that_become_two_is_refused():
    net = pairs(nets.TwoNames, arguments={"in_place": False})
    with pytest.raises(ConfigError, match=r"buffer count of .* parts them \(got count, scale\) at .*; write into it"):
        net.rehearse()


def test_torch_buffers_that_are_parts_of_one_tensor_are_kept_apart():
    assert pairs(nets.parts_of_a_table).n_statistics == 4


def test_torch_one_tensor_with_two_contents_is_refused():
    net = pairs(nets.Tied)
    tensors = net.tensors(*start(net))
    with pytest.raises(ValueError, match=r"one tensor by the names of one.weight and two.weight, which differ"):
        net.vectors(tensors | {"two.weight": tensors["two.weight"] + 1})
    del tensors["one.weight"], tensors["two.weight"]
    with pytest.raises(ValueError, match=r"other tensors: one.weight"):
        net.vectors(tensors)


def test_torch_buffers_of_all_kinds_travel_and_frozen_parameters_stay():
    net = pairs(nets.Counting)
    weights, statistics = start(net)
    assert [each.name for each in net.ranges] == ["scale", "dense.weight", "dense.bias"]
    _, advanced, *_ = gradient(net, weights, statistics, PAIRS, np.array([0, 1, 1]))
    before, after = net.tensors(weights, statistics), net.tensors(weights, advanced)
    changed = {name for name in before if before[name].tobytes() != after[name].tobytes()}
    assert changed == {"seen", "mean"}
    assert "cache" not in after
    assert after["seen"].tolist() == 3
    np.testing.assert_allclose(after["mean"], [0.75, -0.5 * 1.75 / 3], rtol=1e-6)  # half of the means 1.5, -1.75 / 3
    assert (after["mask"].dtype, after["mask"].tolist()) == (np.bool_, [True, False])
    assert after["brief"].tolist() == [0.5, -2.0]
    assert after["far"].tolist() == [-np.inf, 1.0]
    again = net.vectors(after)
    assert again[1].tobytes() == advanced.tobytes()


def test_torch_buffers_that_are_not_persistent_begin_every_call_as_the_factory_made_them():
    net = pairs(nets.Remembering)
    weights, statistics = start(net)
    used = net.workspace(3)
    first = gradient(net, weights, statistics, PAIRS, np.array([0, 1, 1]), workspace=used)
    again = gradient(net, weights, statistics, PAIRS, np.array([0, 1, 1]), workspace=used)
    assert again[0].tobytes() == first[0].tobytes()
    assert again[2:] == first[2:]
    tensors = net.tensors(weights, statistics)
    assert tensors.keys() == {"dense.weight", "dense.bias"}
    logits = PAIRS.reshape(3, 2) @ tensors["dense.weight"].T + tensors["dense.bias"] + np.float32([0.5, -1])
    want = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    for _ in range(2):
        np.testing.assert_allclose(net.predict(weights, PAIRS, used, statistics=statistics), want, rtol=1e-5)


def test_torch_evaluation_uses_the_statistics_and_leaves_them():
    net = network()
    weights, statistics = start(net)
    _, advanced, *_ = gradient(net, weights, statistics)
    kept, workspace = advanced.copy(), net.workspace(6)
    loss, correct, predictions = net.evaluate(weights, IMAGES, LABELS, workspace, statistics=advanced)
    assert advanced.tobytes() == kept.tobytes()
    module = plain(net, weights, advanced).eval()
    with torch.no_grad():
        logits = module(torch.tensor(IMAGES))
    want = torch.nn.functional.cross_entropy(logits, torch.tensor(LABELS), reduction="sum").item()
    assert loss == pytest.approx(want, rel=1e-6)
    assert predictions.tolist() == logits.argmax(1).tolist()
    assert predictions.dtype == np.int64
    assert correct == int((predictions == LABELS).sum())
    probabilities = net.predict(weights, IMAGES, workspace, statistics=advanced)
    np.testing.assert_allclose(probabilities, torch.softmax(logits, 1).numpy(), rtol=1e-5)
    moved = net.vectors(net.tensors(weights, advanced) | {"flat.running_mean": np.full(5, -9, np.float32)})[1]
    assert net.evaluate(weights, IMAGES, LABELS, workspace, statistics=moved)[0] > loss + 0.1


def test_torch_module_is_put_into_its_mode_by_every_call():
    net = build_network(TorchSpec(factory=nets.Folded, input=(2, 1, 1), classes=2))
    images, labels = np.array([[1.0, 2.0], [-1.0, 0.5]], np.float32).reshape(2, 2, 1, 1), np.array([0, 1])
    weights = [np.array(each, np.float32) for each in ([1, 0, 0, 1, 0, 0], [0, 1, 1, 0, 0, 0])]
    workspace = net.workspace(2)
    again = [net.evaluate(each, images, labels, workspace, statistics=net.initial_statistics())[0] for each in weights]
    alone = [
        net.evaluate(each, images, labels, net.workspace(2), statistics=net.initial_statistics())[0] for each in weights
    ]
    assert again == alone
    assert alone[0] != alone[1]


def test_torch_gradient_is_bit_identical_whatever_the_workspace_did_before():
    net = network(arguments={"dropout": 0.5})
    weights, statistics = start(net)
    used = net.workspace(6)
    gradient(net, weights + 1, statistics, seed=9, workspace=used)
    net.evaluate(weights, IMAGES, LABELS, used, statistics=statistics)
    one, other = gradient(net, weights, statistics), gradient(net, weights, statistics, workspace=used)
    assert one[0].tobytes() == other[0].tobytes()
    assert one[1].tobytes() == other[1].tobytes()
    assert one[2:] == other[2:]


def test_torch_dropout_depends_on_the_seed_alone():
    net = network(arguments={"dropout": 0.5})
    weights, statistics = start(net)
    first, second = gradient(net, weights, statistics, seed=1)[0], gradient(net, weights, statistics, seed=2)[0]
    torch.manual_seed(77)
    assert gradient(net, weights, statistics, seed=1)[0].tobytes() == first.tobytes()
    assert not np.allclose(first, second)


@pytest.mark.parametrize(("dropout", "draws"), [(0.0, False), (0.5, True)])
def test_torch_random_is_known_once_compiled(dropout, draws):
    net = network(arguments={"dropout": dropout})
    assert net.random
    net.compile()
    assert net.random is draws


@pytest.mark.parametrize(("dropout", "draws"), [(0.0, False), (0.5, True)])
def test_torch_passes_take_turns_only_if_they_draw(dropout, draws):
    net = network(arguments={"dropout": dropout})
    net.compile()
    assert drawing(net) == {"forward": draws, "backward": False, "evaluation": False}


@pytest.mark.parametrize(
    ("factory", "forward"), [(nets.Checkpointed, True), (nets.Jittered, False)], ids=["checkpointed", "jittered"]
)
def test_torch_backward_pass_that_draws_is_seen(factory, forward):
    net = network(factory)
    net.compile()
    assert drawing(net) == {"forward": forward, "backward": True, "evaluation": False}
    assert net.random


@pytest.mark.parametrize("same", [True, False])
def test_torch_checkpointed_dropout_draws_by_the_seed_in_both_passes(same):
    net = network(nets.Checkpointed, {"same": same})
    weights, statistics = start(net)
    first, second = (gradient(net, weights, statistics, seed=seed)[0] for seed in (1, 2))
    torch.manual_seed(77)
    before = torch.get_rng_state()
    assert gradient(net, weights, statistics, seed=1)[0].tobytes() == first.tobytes()
    assert torch.equal(torch.get_rng_state(), before)
    assert not np.allclose(first, second)


def test_torch_gradient_scaled_at_random_is_that_of_the_seed():
    net = network(nets.Jittered)
    weights, statistics = start(net)
    got = gradient(net, weights, statistics, seed=11)[0]
    module = nets.Jittered()
    module.load_state_dict({name: torch.tensor(each) for name, each in net.tensors(weights, statistics).items()})
    torch.manual_seed(11)
    logits = module(torch.tensor(IMAGES))
    (0.25 * torch.nn.functional.cross_entropy(logits, torch.tensor(LABELS), reduction="sum")).backward()
    want = torch.cat([parameter.grad.flatten() for parameter in module.parameters()]).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


def test_torch_random_numbers_of_the_process_are_left_alone():
    before = torch.get_rng_state()
    net = network(arguments={"dropout": 0.5})
    gradient(net, *start(net))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("factory", "arguments"),
    [
        (nets.Normed, {"dropout": 0.0}),
        (nets.Normed, {"dropout": 0.5}),
        (nets.Checkpointed, {"same": True}),
        (nets.Checkpointed, {"same": False}),
        (nets.Jittered, {}),
    ],
)
def test_torch_two_threads_get_what_one_gets(factory, arguments):
    net = network(factory, arguments)
    net.compile()
    weights, statistics = start(net)
    want = [gradient(net, weights, statistics, seed=seed) for seed in range(16)]
    meet = threading.Barrier(2)

    def work(half):
        meet.wait()
        return [gradient(net, weights, statistics, seed=seed) for seed in half]

    with ThreadPoolExecutor(2) as pool:
        got = [each for half in pool.map(work, (range(8), range(8, 16))) for each in half]
    for one, other in zip(want, got, strict=True):
        # Products may round differently where memory is aligned differently; another seed differs by far more.
        np.testing.assert_allclose(one[0], other[0], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(one[1], other[1], rtol=1e-4, atol=1e-6)


def test_torch_paper_network_gives_the_gradient_of_our_kernels():
    ours, theirs = Model(MNIST), network(nets.paper, shape=(1, 28, 28), classes=10)
    assert theirs.n_weights == ours.n_weights == 59_590
    assert [(each.start, each.stop) for each in theirs.ranges] == [(each.start, each.stop) for each in ours.ranges]
    rng = np.random.default_rng(2)
    weights = ours.initial(rng)
    images, labels = rng.random((16, 1, 28, 28), np.float32), rng.integers(0, 10, 16)
    want, nothing = np.empty_like(weights), np.zeros(0, np.float32)
    loss, correct = ours.gradient(weights, images, labels, want, ours.workspace(16), 1 / 16, statistics=nothing, seed=0)
    out, _, their_loss, their_correct = gradient(theirs, weights, nothing, images, labels, 1 / 16)
    np.testing.assert_allclose(out, want, rtol=0, atol=1e-5 * np.abs(want).max())
    assert their_loss == pytest.approx(loss, rel=1e-5)
    assert their_correct == correct


def test_torch_initial_weights_follow_the_generator():
    net = network()
    assert start(net, 3)[0].tobytes() == start(net, 3)[0].tobytes()
    assert not np.array_equal(start(net, 3)[0], start(net, 4)[0])
    assert net.tensors(*start(net))["flat.running_var"].tolist() == [1] * 5


def test_torch_empty_batch_gives_nothing_and_leaves_the_statistics():
    net = network()
    weights, statistics = start(net)
    out, advanced, loss, correct = gradient(net, weights, statistics, IMAGES[:0], LABELS[:0])
    assert not out.any()
    assert advanced.tobytes() == statistics.tobytes()
    assert (loss, correct) == (0.0, 0)


def test_torch_batch_normalisation_of_one_image_says_what_to_do():
    net = network()
    with pytest.raises(ConfigError, match=r"shard of one image: Expected more than 1 value.*two images or more"):
        gradient(net, *start(net), IMAGES[:1], LABELS[:1])


def test_torch_weights_that_are_read_only_will_do():
    net = network()
    weights, statistics = start(net)
    want = gradient(net, weights, statistics)[0]
    weights.flags.writeable = False
    assert gradient(net, weights, statistics)[0].tobytes() == want.tobytes()


def test_torch_out_is_not_kept():
    net = network()
    weights, statistics = start(net)
    workspace = net.workspace(6)
    first = gradient(net, weights, statistics, workspace=workspace)[0]
    kept = first.copy()
    gradient(net, weights + 1, statistics, workspace=workspace)
    assert first.tobytes() == kept.tobytes()
    assert all(parameter.grad is None for parameter in workspace.module.parameters())


def test_torch_own_loss_is_summed_and_scaled_by_the_adapter():
    net = pairs(loss=nets.squared)
    weights = np.array([1, 0, 0, 1, 0, 0], np.float32)  # logits are the pixels
    out, _, loss, correct = gradient(net, weights, np.zeros(0, np.float32), PAIRS, np.array([0, 1, 1]), scale=0.5)
    # Distances to one-hot labels: (0, 2), (3, -5), (0.5, -0.75); the gradient is their product with the pixels, halved.
    assert loss == pytest.approx((4 + 9 + 25 + 0.25 + 0.5625) / 2)
    assert out[:4].tolist() == [(0 + 9 + 0.25) / 2, (0 - 12 + 0.125) / 2, (2 - 15 - 0.375) / 2, (4 + 20 - 0.1875) / 2]
    assert out[4:].tolist() == [(0 + 3 + 0.5) / 2, (2 - 5 - 0.75) / 2]
    assert correct == 0


def test_torch_loss_that_is_no_loss_per_image_is_refused():
    net = pairs(loss=nets.mean_loss)
    with pytest.raises(ConfigError, match=r'one loss per image, shape \(3,\).*reduction="none"'):
        gradient(net, *start(net), PAIRS, np.array([0, 1, 1]))


def test_torch_logits_of_another_shape_are_refused():
    net = pairs(arguments={"classes": 4})
    with pytest.raises(ConfigError, match=r"must return logits of shape \(3, 2\) \(got \(3, 4\)\)"):
        gradient(net, *start(net), PAIRS, np.array([0, 1, 1]))


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (nets.no_module, r"no_module must return a torch.nn.Module \(got int\)"),
        (nets.double, r"parameter 1.weight .* is torch.float64"),
        (nets.complex_buffer, "buffer phase .* is torch.complex64"),
        (nets.Counted, r"neither a parameter nor a buffer \(got _extra_state\); .* not in get_extra_state"),
        (nets.view_of_a_buffer, "table and end of .*view_of_a_buffer share memory.*clone"),
        (nets.lazy, r"lazy layers.* at .*torch_networks.py:\d+; .*compute on torch.zeros\(2, 1, 1, 2\)"),
        (nets.frozen_double, "frozen parameter 2.weight .* is torch.float64.*; make it float32$"),
        (nets.all_frozen, "no parameters that take a gradient"),
        ("torch_networks:missing", "cannot be imported"),
        ("no_such_module:make", "cannot be imported: No module named"),
        ("torch_networks:IMAGES.none", "cannot be imported"),
    ],
)
def test_torch_module_that_cannot_be_used_is_refused(factory, said):
    with pytest.raises(ConfigError, match=said):
        pairs(factory)


def line(text):
    """``file:line`` of a line of the modules, by what it says."""
    lines = Path(nets.__file__).read_text().splitlines()
    return f"{nets.__file__}:{1 + next(number for number, each in enumerate(lines) if text in each)}"


FAULTY = line("class Faulty")


@pytest.mark.parametrize(
    ("fault", "said", "got", "where"),
    [
        ("init", "torch_networks:Faulty raised ValueError: no such width", None, line("no such width")),
        ("fit", "forward of .*Faulty raised RuntimeError: mat1 and mat2.*", None, line("return self.wide")),
        ("fit_in_evaluation", "forward of .*Faulty raised RuntimeError: mat1 and.*", None, line("return self.wide")),
        ("no_grad", "the loss of the module of torch_networks:Faulty has no gradient", None, FAULTY),
        ("detach", "the loss of the module of torch_networks:Faulty has no gradient", None, FAULTY),
        ("in_place", "the backward pass of .*Faulty raised RuntimeError: one of the variables.*", None, FAULTY),
        ("images", "forward of .*Faulty writes into the images that it is given", None, FAULTY),
        ("grow", r"forward makes .* of buffer seen, which is torch.float32 \(1,\)", "torch.float32 (2,)", FAULTY),
        ("none", r"forward makes .* of buffer seen, which is torch.float32 \(1,\)", "NoneType", FAULTY),
        ("kind", r"forward makes .* of buffer count, which is torch.int64 \(\)", "torch.float32 ()", FAULTY),
    ],
)
def test_torch_fault_of_a_module_is_told_with_its_factory_and_line_and_what_to_do(fault, said, got, where):
    with pytest.raises(ConfigError) as caught:
        pairs(nets.Faulty, arguments={"fault": fault}).rehearse()
    assert re.fullmatch(said, caught.value.what)
    assert (caught.value.got, caught.value.where) == (got, where)
    assert caught.value.fix


def test_torch_layer_of_pytorch_that_does_not_fit_is_told_with_the_factorys_line():
    with pytest.raises(ConfigError, match=r"forward of the module of .*misfit raised.*mat1") as caught:
        pairs(nets.misfit).rehearse()
    assert caught.value.where == line("def misfit")
    assert caught.value.fix == "have it take float32 images of shape (2, 1, 1, 2) and return logits of shape (2, 2)"


def test_torch_loss_that_raises_is_told_by_its_name():
    with pytest.raises(ConfigError, match=r"the loss torch_networks:faulty_loss raised RuntimeError") as caught:
        pairs(loss=nets.faulty_loss).rehearse()
    assert caught.value.where == line("labels.float(), reduction")


def test_torch_lazy_layers_that_have_computed_are_layers_like_others():
    net = pairs(nets.lazy_no_more)
    net.rehearse()
    assert [each.shape for each in net.ranges] == [(2, 2), (2,)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"last.bias": np.zeros(4, np.float32)}, r"last.bias must have shape \(3,\), got \(4,\)"),
        ({"norm.running_mean": np.zeros(4, np.float32)}, r"norm.running_mean must have shape \(3,\), got \(4,\)"),
        ({"more": np.zeros(1, np.float32)}, "other tensors: more"),
    ],
)
def test_torch_vectors_of_other_tensors_are_refused(change, said):
    net = network()
    with pytest.raises(ValueError, match=said):
        net.vectors(net.tensors(*start(net)) | change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"images": IMAGES[:, :1]}, "images must be float32 of shape"),
        ({"labels": LABELS[:2]}, "labels must be int64 of shape"),
    ],
)
def test_torch_arrays_that_do_not_fit_are_refused(change, said):
    net = network()
    with pytest.raises(ValueError, match=said):
        gradient(net, *start(net), **change)


def test_torch_workspace_of_another_network_is_refused():
    with pytest.raises(ValueError, match="belongs to another network"):
        gradient(network(), *start(network()), workspace=network(arguments={"dropout": 0.5}).workspace(6))


def test_torch_device_cuda_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no GPU that PyTorch can use"):
        build_network(TorchSpec(factory=nets.dense, input=(1, 1, 2), classes=2, device="cuda"))
    auto = build_network(TorchSpec(factory=nets.dense, input=(1, 1, 2), classes=2))
    assert auto.device.type == "cpu"


def test_torch_device_auto_is_the_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert build_network(TorchSpec(factory=nets.dense, input=(1, 1, 2), classes=2)).device.type == "cuda"


def test_torch_in_the_environment_of_a_job_process_uses_one_thread():
    ended = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.get_num_threads())"],
        env={**os.environ, **ONE_THREAD},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == "1\n"
