"""Modules as users write them, for the tests of networks made by PyTorch."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Normed(nn.Module):
    """A convolution and two kinds of batch normalisation; 2 x 4 x 4 images, 3 classes."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(3)
        self.dense = nn.Linear(48, 5)
        self.flat = nn.BatchNorm1d(5)
        self.drop = nn.Dropout(dropout)
        self.last = nn.Linear(5, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = functional.relu(self.norm(self.conv(images)))
        return self.last(self.drop(functional.relu(self.flat(self.dense(features.flatten(1))))))


class Folded(nn.Module):
    """Keeps a copy of its weights whenever it is put into evaluation mode, and evaluates with that."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(2, 2)

    def train(self, mode: bool = True) -> "Folded":
        super().train(mode)
        self.kept = None if mode else self.dense.weight.detach().clone()
        return self

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        weight = self.dense.weight if self.kept is None else self.kept
        return functional.linear(images.flatten(1), weight, self.dense.bias)


class Counting(nn.Module):
    """Buffers of many kinds, some replaced by assignment; a frozen layer; a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.dense = nn.Linear(2, 2)
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("brief", torch.tensor([0.5, -2.0], dtype=torch.bfloat16))
        self.register_buffer("far", torch.tensor([float("-inf"), 1.0]))
        self.register_buffer("cache", torch.zeros(4), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.flatten(1)
        if self.training:
            self.seen = self.seen + len(images)
            self.mean = 0.5 * self.mean + 0.5 * pixels.mean(0)
        return self.scale * self.dense(self.frozen(pixels) + self.mean)


class Checkpointed(nn.Module):
    """Dropout that the backward pass computes again, either with the same numbers or with new ones."""

    def __init__(self, same: bool = True) -> None:
        super().__init__()
        self.dense, self.last, self.same = nn.Linear(32, 64), nn.Linear(64, 3), same

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = images.flatten(1)
        return self.last(checkpoint(self._dropped, features, use_reentrant=False, preserve_rng_state=self.same))

    def _dropped(self, features: torch.Tensor) -> torch.Tensor:
        return functional.dropout(self.dense(features), 0.5, self.training)


class _Jitter(torch.autograd.Function):
    """The identity, whose gradient is scaled at random."""

    @staticmethod
    def forward(_ctx: object, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(_ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * torch.rand_like(gradient)


class Jittered(nn.Module):
    """Draws in the backward pass alone."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(32, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return _Jitter.apply(self.dense(images.flatten(1)))


class Remembering(nn.Module):
    """Adds what two buffers that are not persistent gather over the calls; one is nothing at first."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(2, 2)
        self.register_buffer("offset", torch.tensor([0.5, -1.0]), persistent=False)
        self.register_buffer("calls", None, persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = self.dense(images.flatten(1)) + self.offset
        self.offset += 1
        self.calls = torch.ones(2) if self.calls is None else self.calls + 1
        return logits * self.calls


class Tied(nn.Module):
    """Layers that share their weight, which may be frozen, and a normalisation that is there by two names."""

    def __init__(self, frozen: bool = False) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
        self.two.weight = self.one.weight
        self.one.weight.requires_grad_(not frozen)
        self.norm = nn.BatchNorm1d(2)
        self.again = self.norm

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = torch.tanh(self.norm(self.one(images.flatten(1))))
        return self.last(self.again(self.two(features)))


class TwoNames(nn.Module):
    """Logits are scaled by a buffer that is counted up by another name, in place or not."""

    def __init__(self, in_place: bool = True, persistent: bool = True) -> None:
        super().__init__()
        self.dense, self.in_place = nn.Linear(2, 2), in_place
        shared = torch.zeros(1)
        self.register_buffer("count", shared, persistent=persistent)
        self.register_buffer("scale", shared, persistent=persistent)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.in_place:
            self.count += 1
        else:
            self.count = self.count + 1
        return self.dense(images.flatten(1)) * (1 + self.scale)


class Faulty(nn.Module):
    """What `fault` says is wrong with it, in training or always."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        if fault == "init":
            raise ValueError("no such width")
        self.dense, self.wide, self.fault = nn.Linear(2, 2), nn.Linear(5, 2), fault
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.fault == "images":
            images.relu_()
        if self.fault == "grow":
            self.seen = torch.zeros(2)
        if self.fault == "kind":
            self.count = self.count + 0.5
        if self.fault == "none":
            self.seen = None
        if self.fault == "no_grad":
            with torch.no_grad():
                return self.dense(images.flatten(1))
        if self.fault == "fit" or (self.fault == "fit_in_evaluation" and not self.training):
            return self.wide(images.flatten(1))
        logits = self.dense(images.flatten(1))
        if self.fault == "in_place":
            squares = logits.square()
            logits += 1
            return squares
        return logits.detach() if self.fault == "detach" else logits


def faulty_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, labels.float(), reduction="none")


def lazy() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(2))


def lazy_no_more() -> nn.Module:
    module = lazy()
    module(torch.zeros(2, 1, 1, 2))
    return module


def misfit() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(5, 2))


def frozen_double() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.Linear(2, 2).double().requires_grad_(False))


class Counted(nn.Module):
    """Has a state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.count = nn.Linear(2, 2), 0

    def get_extra_state(self) -> int:
        return self.count


def dense(classes: int = 2, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(2, classes, bias=bias))


def paper() -> nn.Module:
    """The MNIST network of ako.txt 5.1."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(10, 20, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(20, 100, 4), nn.ReLU(), nn.Flatten(),
        nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10),
    )  # fmt: skip


def no_module() -> int:
    return 7


def double() -> nn.Module:
    return dense().double()


def complex_buffer() -> nn.Module:
    module = dense()
    module.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))
    return module


def view_of_a_buffer() -> nn.Module:
    module, table = dense(), torch.zeros(4)
    module.register_buffer("table", table)
    module.register_buffer("end", table[2:])
    return module


def parts_of_a_table() -> nn.Module:
    module, table = dense(), torch.zeros(4)
    module.register_buffer("begin", table[:2])
    module.register_buffer("end", table[2:])
    module.register_buffer("none", table[4:])
    return module


def all_frozen() -> nn.Module:
    return dense().requires_grad_(False)


def squared(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Half the squared distance to the one-hot label."""
    return 0.5 * (logits - functional.one_hot(labels, logits.shape[1])).square().sum(1)


def mean_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, labels)


def convolutions(frozen: bool = False) -> nn.Module:
    """Convolutions of several and of single channels and pixels, which may be frozen; 2 x 4 x 4 images, 3 classes."""
    inner = nn.Sequential(nn.Conv2d(4, 3, 2), nn.Conv2d(3, 1, 1), nn.Conv2d(1, 3, 2, padding=1))
    inner.requires_grad_(not frozen)
    return nn.Sequential(nn.Conv2d(2, 4, 2), nn.ReLU(), inner, nn.Flatten(), nn.Linear(27, 3))


def channels_last(frozen: bool = False) -> nn.Module:
    """The same, in the layout that convolutions are often faster with."""
    return convolutions(frozen).to(memory_format=torch.channels_last)
