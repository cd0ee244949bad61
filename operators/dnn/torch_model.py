"""A `torch.nn.Module` of the user's as functions on flat vectors; only here and in what this imports is PyTorch used.

Parameters that take a gradient are the weights; everything else in the module's state dict (buffers, frozen
parameters) is the statistics. A tensor that has several names there, as tied weights have, is in the vectors once, and
in files once for each name. Every workspace has a module of its own, into which a call loads both vectors, and puts
the other buffers as the factory made them, so that nothing is left of one call when the next begins. Gradients are
written straight to `out`; weights are copied once, into a vector that the module's parameters are cut from. Vectors
have every tensor in C order. Parameters that the factory lays out otherwise, as `module.to(memory_format=
torch.channels_last)` does with the weights of convolutions, stay so, and are copied in and out.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dataflow.errors import ConfigError
from operators.dnn.arrays import Vector, joined, require, views
from operators.dnn.torch_blame import blamed, made_at
from operators.dnn.torch_random import Pass, Randomness, seeded
from operators.dnn.torch_spec import TorchSpec
from operators.dnn.torch_tensors import (
    Layout,
    Places,
    members_of,
    owners_of,
    passing_of,
    statistics_of,
    trained,
    weight_ranges,
)


@dataclass(frozen=True, eq=False)
class TorchWorkspace:
    """A module for one thread.

    Args:
        spec: what it was made from.
        batch: images of a batch at most.
        module: on the device.
        parameters: those that are trained, in the order of the vector.
        layouts: theirs.
        weights: (weights,) on the device, what a call is given.
        owned: by parameter, what it holds while the module computes: its part of `weights`, or a copy in its layout.
        places: by parameter, address and strides of `owned`.
        copied: those of `owned` that are copies, each with its part, in C order.
        owners: by statistic, its places and its layout.
        passing: buffers that are no statistics: their places, and what the factory made of them.
    """

    spec: TorchSpec
    batch: int
    module: torch.nn.Module
    parameters: tuple[torch.nn.Parameter, ...]
    layouts: tuple[Layout, ...]
    weights: torch.Tensor
    owned: tuple[torch.Tensor, ...]
    places: tuple[tuple[int, tuple[int, ...]], ...]
    copied: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    owners: tuple[tuple[Places, Layout], ...]
    passing: tuple[tuple[Places, torch.Tensor | None], ...]


class TorchModel:
    """The functions of a user's module; the contract is `operators.dnn.network.Network`.

    A module that draws random numbers (dropout) gets them from the seed of the call, and its passes that draw take
    turns; see `operators.dnn.torch_random`.
    """

    def __init__(self, spec: TorchSpec) -> None:
        self.spec = spec
        self.n_classes = spec.classes
        self.device = torch.device(_device(spec))
        self._factory = _function(spec.factory)
        self._loss = _function(spec.loss) if spec.loss else _cross_entropy
        self._random = Randomness(self.device)
        members = members_of(self._make(0), spec)
        self._names = {name: each.names[0] for each in members for name in each.names}
        self.ranges = weight_ranges(members, spec)
        self.n_weights = self.ranges[-1].stop
        self._statistics = statistics_of(members, spec)
        self.n_statistics = self._statistics[-1].stop if self._statistics else 0
        self.integers = tuple(slice(each.start, each.stop) for each in self._statistics if each.wide)
        self._initial_statistics = np.empty(self.n_statistics, np.float32)
        self._save(owners_of(members), self._initial_statistics)

    @property
    def random(self) -> bool:
        """Whether gradients depend on their seed; assumed until `compile` has seen that the module draws nothing."""
        return self._random.draws(Pass.FORWARD, Pass.BACKWARD)

    def initial(self, rng: np.random.Generator) -> Vector:
        """The weights of a module made with PyTorch's generator seeded from `rng`, (n_weights,)."""
        module = self._make(int(rng.integers(1 << 63)))
        weights: Vector = torch.cat([parameter.detach().reshape(-1) for parameter in trained(module)]).numpy()
        return weights

    def initial_statistics(self) -> Vector:
        """The buffers of a new module, (n_statistics,)."""
        return self._initial_statistics.copy()

    def workspace(self, batch: int) -> TorchWorkspace:
        """A module of one's own; batches of any size fit."""
        module = self._make(0)
        members = members_of(module, self.spec)  # before a move to a GPU, which makes several of what was one buffer
        module, parameters = module.to(self.device), tuple(trained(module))
        layouts = tuple(map(Layout.of, parameters))
        weights = torch.zeros(self.n_weights, device=self.device)
        parts = self._cut(weights)
        owned = tuple(layout.own(part) for layout, part in zip(layouts, parts, strict=True))
        return TorchWorkspace(
            self.spec,
            batch,
            module,
            parameters,
            layouts,
            weights,
            owned,
            places=tuple((own.data_ptr(), own.stride()) for own in owned),
            copied=tuple(
                (own, part) for own, part in zip(owned, parts, strict=True) if own.data_ptr() != part.data_ptr()
            ),
            owners=owners_of(members),
            passing=passing_of(module, members, self.device),
        )

    def rehearse(self) -> None:
        """Train on two images of zeros."""
        self.compile()

    def compile(self) -> None:
        """Compute once, so that PyTorch is ready and it is known whether the module draws random numbers."""
        workspace, weights = self.workspace(2), self.initial(np.random.default_rng(0))
        images, labels = np.zeros((2, *self.spec.input), np.float32), np.zeros(2, np.int64)
        statistics, out = self.initial_statistics(), np.empty_like(weights)
        self.gradient(weights, images, labels, out, workspace, 1.0, statistics=statistics, seed=0)
        self.evaluate(weights, images, labels, workspace, statistics=statistics)

    def gradient(
        self,
        weights: Vector,
        images: npt.NDArray[np.float32],
        labels: npt.NDArray[np.int64],
        out: Vector,
        workspace: TorchWorkspace,
        scale: float,
        *,
        statistics: Vector,
        seed: int,
    ) -> tuple[float, int]:
        """Differentiate the loss of a batch by the weights, the module in training mode; see `Network.gradient`."""
        require("labels", labels, np.int64, (len(images),))
        require("out", out, np.float32, (self.n_weights,))
        require("statistics", statistics, np.float32, (self.n_statistics,))
        if not len(images):
            out[:] = 0
            return 0.0, 0
        inputs = self._load(weights, statistics, images, workspace)
        gradients = torch.from_numpy(out).to(self.device).zero_()
        parts = tuple(zip(workspace.parameters, workspace.layouts, self.ranges, strict=True))
        for parameter, layout, each in parts:
            parameter.grad = gradients.as_strided(each.shape, layout.strides, each.start) if layout.in_order else None
        workspace.module.train()
        classes = _tensor(labels).to(self.device)
        with ExitStack() as turn:
            turn.enter_context(self._random.turn(seed, Pass.FORWARD, Pass.BACKWARD))
            with self._random.watched(Pass.FORWARD):
                logits = self._forward(workspace.module, inputs)
                losses = self._losses(logits, classes)
            if not losses.requires_grad:
                what = f"the loss of the module of {self.spec.factory} has no gradient"
                fix = "have its forward, and the loss, compute without no_grad, detach and .data"
                raise ConfigError(what, where=made_at(self._factory), fix=fix)
            if not self._random.draws(Pass.BACKWARD):
                turn.close()
            fix = "see that backward() can be called on its loss, by the module alone"
            with self._random.watched(Pass.BACKWARD), self._blamed("the backward pass of", fix):
                losses.backward(torch.full_like(losses, scale))
        for parameter, layout, each in parts:
            if parameter.grad is not None and not layout.in_order:
                gradients[each.start : each.stop].view(each.shape).copy_(parameter.grad)
            parameter.grad = None
        if self.device.type != "cpu":
            torch.from_numpy(out).copy_(gradients)
        self._save(workspace.owners, statistics)
        return float(losses.detach().double().sum()), int((logits.argmax(1) == classes).sum())

    def evaluate(
        self,
        weights: Vector,
        images: npt.NDArray[np.float32],
        labels: npt.NDArray[np.int64],
        workspace: TorchWorkspace,
        *,
        statistics: Vector,
    ) -> tuple[float, int, npt.NDArray[np.int64]]:
        """Classify a batch, the module in evaluation mode; see `Network.evaluate`."""
        require("labels", labels, np.int64, (len(images),))
        if not len(images):
            return 0.0, 0, np.empty(0, np.int64)
        logits = self._logits(weights, images, workspace, statistics)
        classes, predictions = _tensor(labels).to(self.device), logits.argmax(1)
        loss = float(self._losses(logits, classes).detach().double().sum())
        return loss, int((predictions == classes).sum()), predictions.cpu().numpy()

    def predict(
        self, weights: Vector, images: npt.NDArray[np.float32], workspace: TorchWorkspace, *, statistics: Vector
    ) -> npt.NDArray[np.float32]:
        """The softmax of the logits, the module in evaluation mode; see `Network.predict`."""
        if not len(images):
            return np.empty((0, self.n_classes), np.float32)
        logits = self._logits(weights, images, workspace, statistics)
        probabilities: npt.NDArray[np.float32] = torch.softmax(logits.float(), 1).cpu().numpy()
        return probabilities

    def tensors(self, weights: Vector, statistics: Vector) -> dict[str, npt.NDArray[Any]]:
        """The module's state dict as arrays; bfloat16, which NumPy lacks, as float32, and a copy for each name."""
        found: dict[str, npt.NDArray[Any]] = dict(views(weights, self.ranges))
        for statistic in self._statistics:
            tensor = statistic.read(statistics)
            found[statistic.name] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        return found | {name: found[first].copy() for name, first in self._names.items() if name != first}

    def vectors(self, tensors: Mapping[str, npt.NDArray[Any]]) -> tuple[Vector, Vector]:
        """Weights and statistics from a state dict; of a tensor with several names, any of them will do.

        Raises:
            ValueError: the tensors are not those of the module.
        """
        found: dict[str, npt.NDArray[Any]] = {}
        for name, first in self._names.items():
            array = tensors.get(name)
            if array is not None and not np.array_equal(
                found.setdefault(first, array), array, equal_nan=array.dtype.kind == "f"
            ):
                what = f"the module has one tensor by the names of {first} and {name}, which differ"
                raise ValueError(what)
        lacking, unknown = set(self._names.values()) - found.keys(), tensors.keys() - self._names.keys()
        if lacking or unknown:
            what = f"the module has other tensors: {', '.join(sorted(lacking | unknown))}"
            raise ValueError(what)
        statistics = self.initial_statistics()
        for each in self._statistics:
            tensor = torch.tensor(found[each.name])
            if tensor.shape != each.shape:
                what = f"tensor {each.name} must have shape {tuple(each.shape)}, got {tuple(tensor.shape)}"
                raise ValueError(what)
            each.write(tensor, statistics)
        return joined(found, self.ranges), statistics

    def _make(self, seed: int) -> torch.nn.Module:
        fix = f"see that it can be called with the arguments {json.dumps(self.spec.arguments)}"
        with seeded(seed, torch.device("cpu")), blamed(self.spec.factory, self._factory, fix):
            module = self._factory(**self.spec.arguments)
        if not isinstance(module, torch.nn.Module):
            what = f"{self.spec.factory} must return a torch.nn.Module"
            raise ConfigError(what, got=type(module).__name__)
        if any(map(torch.nn.parameter.is_lazy, (*module.parameters(), *module.buffers()))):
            what = f"the module of {self.spec.factory} has lazy layers, which get their sizes from the first images"
            fix = f"give their sizes, or have it compute on torch.zeros{(2, *self.spec.input)} before you return it"
            raise ConfigError(what, where=made_at(self._factory), fix=fix)
        return module

    def _load(
        self, weights: Vector, statistics: Vector, images: npt.NDArray[np.float32], workspace: TorchWorkspace
    ) -> torch.Tensor:
        """Put weights and statistics into the workspace's module; the images as a tensor."""
        require("weights", weights, np.float32, (self.n_weights,))
        require("statistics", statistics, np.float32, (self.n_statistics,))
        require("images", images, np.float32, (len(images), *self.spec.input))
        if workspace.spec is not self.spec and workspace.spec != self.spec:
            what = "the workspace belongs to another network: make one with this model's workspace()"
            raise ValueError(what)
        _fill(workspace.weights, weights)
        for own, part in workspace.copied:
            own.copy_(part)
        for parameter, own, place in zip(workspace.parameters, workspace.owned, workspace.places, strict=True):
            # At first, and if the module has put something in its place.
            if (parameter.data_ptr(), parameter.stride()) != place:
                parameter.data = own
        for (places, layout), statistic in zip(workspace.owners, self._statistics, strict=True):
            tensor = layout.own(statistic.read(statistics).to(self.device))
            # Put in place of the buffer, not copied into it, so that a buffer of the last graph is let go.
            for owner, attribute in places:
                if attribute in owner._buffers:
                    owner._buffers[attribute] = tensor
                else:
                    getattr(owner, attribute).data = tensor
        for places, made in workspace.passing:
            buffer = None if made is None else made.clone()
            for owner, attribute in places:
                owner._buffers[attribute] = buffer
        return _tensor(images).to(self.device)

    def _save(self, owners: tuple[tuple[Places, Layout], ...], statistics: Vector) -> None:
        for (places, _), statistic in zip(owners, self._statistics, strict=True):
            tensors = [statistic.required(getattr(owner, name, None), self._factory) for owner, name in places]
            if any(tensor.data_ptr() != tensors[0].data_ptr() for tensor in tensors):
                what = f"buffer {statistic.name} of {self.spec.factory} has several names, and forward parts them"
                fix = "write into it in place, or register a clone() by each name"
                got = ", ".join(attribute for _, attribute in places)
                raise ConfigError(what, got=got, where=made_at(self._factory), fix=fix)
            statistic.write(tensors[0], statistics)

    def _cut(self, vector: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(vector[start:stop].view(shape) for _, start, stop, shape in self.ranges)

    def _logits(
        self, weights: Vector, images: npt.NDArray[np.float32], workspace: TorchWorkspace, statistics: Vector
    ) -> torch.Tensor:
        inputs = self._load(weights, statistics, images, workspace)
        workspace.module.eval()
        evaluation = Pass.EVALUATION
        with torch.no_grad(), self._random.turn(0, evaluation), self._random.watched(evaluation):
            return self._forward(workspace.module, inputs)

    def _forward(self, module: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        shape = (len(inputs), self.n_classes)
        fix = f"have it take float32 images of shape {tuple(inputs.shape)} and return logits of shape {shape}"
        with self._blamed("forward of", fix), self._of_one_image(module, len(inputs)):
            logits = module(inputs)
        if inputs._version:
            what = f"forward of the module of {self.spec.factory} writes into the images that it is given"
            fix = "have it compute on a clone() of them, or use functions that do not work in place"
            raise ConfigError(what, where=made_at(self._factory), fix=fix)
        if not isinstance(logits, torch.Tensor) or logits.shape != shape:
            got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
            what = f"the module of {self.spec.factory} must return logits of shape {shape}"
            raise ConfigError(what, got=got, where=made_at(self._factory))
        return logits

    @contextmanager
    def _of_one_image(self, module: torch.nn.Module, images: int) -> Iterator[None]:
        """What PyTorch's batch normalisation says of one image, with what to do about it."""
        try:
            yield
        except ValueError as error:
            if images > 1 or not module.training:
                raise
            what = f"the module of {self.spec.factory} cannot be trained on a shard of one image: {error}"
            fix = "choose batch so that shards have two images or more, in an epoch's last mini-batch too"
            raise ConfigError(what, where=made_at(self._factory), fix=f"{fix}; or use GroupNorm") from error

    def _blamed(self, what: str, fix: str) -> AbstractContextManager[None]:
        """Runs code of the module."""
        return blamed(f"{what} the module of {self.spec.factory}", self._factory, fix)

    def _losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        fix = "have it take logits (images, classes) and labels (images,), and return one loss per image"
        with blamed(f"the loss {self.spec.loss}", self._loss, fix):
            losses = self._loss(logits, labels)
        if not isinstance(losses, torch.Tensor) or losses.shape != labels.shape:
            got = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
            what = f"the loss {self.spec.loss} must return one loss per image, shape {tuple(labels.shape)}"
            fix = 'leave the mean to Ako: reduction="none"'
            raise ConfigError(what, got=got, where=made_at(self._loss), fix=fix)
        return losses


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """The array's memory as a tensor; a copy of what is read-only, since PyTorch knows no such tensors."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _fill(tensor: torch.Tensor, array: npt.NDArray[Any]) -> None:
    """Copy an array into a tensor of its shape and dtype."""
    if tensor.device.type == "cpu":
        tensor.numpy()[...] = array
    else:
        tensor.copy_(_tensor(array))


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


def _device(spec: TorchSpec) -> str:
    if spec.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(what="there is no GPU that PyTorch can use", got=spec.device, fix="use device=auto")
    if spec.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return spec.device


def _function(name: str) -> Callable[..., Any]:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        fix = "put its file into the job's folder, or install it on every node"
        raise ConfigError(what=f"{name} cannot be imported: {error}", fix=fix) from error
    if not callable(found):
        raise ConfigError(what=f"{name} is no function", got=type(found).__name__)
    function: Callable[..., Any] = found
    return function
