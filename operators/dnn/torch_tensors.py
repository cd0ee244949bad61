"""The tensors of a user's module: which are weights, which are statistics, where it has them, and how they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from dataflow.errors import ConfigError
from operators.dnn import integers
from operators.dnn.arrays import Vector
from operators.dnn.spec import WeightRange
from operators.dnn.torch_blame import made_at
from operators.dnn.torch_spec import TorchSpec

_WIDE = frozenset({torch.int32, torch.int64})
"""Types whose numbers take several floats each."""

_NARROW = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int8, torch.int16})
"""Types whose numbers are float32 numbers too."""


Places = tuple[tuple[torch.nn.Module, str], ...]
"""Where a module has a tensor: submodules, and the name of the attribute there."""


class Member(NamedTuple):
    """A tensor of a module.

    Args:
        tensor: as the factory made it.
        names: in the state dict; none of buffers that are not in it.
        places: at least one.
    """

    tensor: torch.Tensor
    names: tuple[str, ...]
    places: Places

    @property
    def trained(self) -> bool:
        """Whether it is a parameter that takes a gradient."""
        owner, attribute = self.places[0]
        return attribute in owner._parameters and self.tensor.requires_grad


@dataclass(frozen=True)
class Statistic:
    """A buffer or a frozen parameter.

    Args:
        name: its first one in the state dict.
        start, stop: its place in the vector of statistics.
        shape, dtype: of the tensor.
    """

    name: str
    start: int
    stop: int
    shape: torch.Size
    dtype: torch.dtype

    @property
    def wide(self) -> bool:
        """Whether each number takes several floats."""
        return self.dtype in _WIDE

    def read(self, values: Vector) -> torch.Tensor:
        """Its tensor, a copy, from the vector of all statistics."""
        floats = values[self.start : self.stop]
        tensor = torch.from_numpy(integers.to_integers(floats) if self.wide else floats.copy())
        exact = tensor if self.wide or self.dtype.is_floating_point else tensor.round()
        return exact.to(self.dtype).reshape(self.shape)

    def required(self, found: Any, factory: Callable[..., Any]) -> torch.Tensor:
        """The tensor that a forward pass has left in its place.

        Raises:
            ConfigError: it is of another shape or kind, or none.
        """
        fractions = self.dtype.is_floating_point
        if isinstance(found, torch.Tensor) and found.shape == self.shape and found.is_floating_point() is fractions:
            return found
        got = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        what = f"forward makes something else of buffer {self.name}, which is {self.dtype} {tuple(self.shape)}"
        fix = "have it so from the start, or register it with persistent=False, and every call begins anew"
        raise ConfigError(what, got=got, where=made_at(factory), fix=fix)

    def write(self, tensor: torch.Tensor, values: Vector) -> None:
        """Put its tensor into the vector of all statistics."""
        flat = tensor.detach().cpu().reshape(-1)
        values[self.start : self.stop] = (
            integers.to_floats(flat.long().numpy()) if self.wide else flat.to(torch.float32).numpy()
        )


class Layout(NamedTuple):
    """How a module has a tensor in memory, as its factory made it.

    Args:
        strides: of the tensor, or of its copy if several of its elements are one.
        in_order: whether that is C order: an axis of one may have any stride, which PyTorch takes for a wish.
    """

    strides: tuple[int, ...]
    in_order: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """That of a tensor."""
        alike = torch.empty_like(tensor, device="meta")
        return cls(alike.stride(), alike.is_contiguous())

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor in C order in this layout: the same memory if that will do, else a copy."""
        if self.in_order:
            return tensor.as_strided(tensor.shape, self.strides)
        return torch.empty_strided(tensor.shape, self.strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def members_of(module: torch.nn.Module, spec: TorchSpec) -> tuple[Member, ...]:
    """The tensors of a module, parameters first, in the order in which it has them.

    Raises:
        ConfigError: something else is in its state dict, or two tensors share memory.
    """
    kept = module.state_dict(keep_vars=True)
    names: dict[int, list[str]] = {}
    for name, tensor in kept.items():
        names.setdefault(id(tensor), []).append(name)
    found: dict[int, Member] = {}
    for kind in ("_parameters", "_buffers"):
        for path, owner in module.named_modules():
            for attribute, tensor in getattr(owner, kind).items():
                if tensor is None:
                    continue
                own = [f"{path}.{attribute}" if path else attribute] if kind == "_parameters" else []
                known = found.get(id(tensor), Member(tensor, tuple(names.get(id(tensor), own)), ()))
                found[id(tensor)] = known._replace(places=(*known.places, (owner, attribute)))
    others = [name for name, tensor in kept.items() if id(tensor) not in found]
    if others:
        what = f"the state dict of the module of {spec.factory} has what is neither a parameter nor a buffer"
        fix = "Ako keeps tensors only: have it in a buffer or an argument of the factory, and not in get_extra_state"
        raise ConfigError(what, got=", ".join(others), fix=fix)
    _require_apart([each for each in found.values() if each.names], spec)
    return tuple(found.values())


def _require_apart(members: list[Member], spec: TorchSpec) -> None:
    """Refuse tensors that share memory, such as views of each other: they would be kept and advanced apart.

    Raises:
        ConfigError: there are some.
    """
    named = ((each.tensor, each.names[0]) for each in members if each.tensor.numel())
    spans = sorted((*_span(tensor), name) for tensor, name in named)
    for (_, end, one), (begin, _, other) in pairwise(spans):
        if begin < end:
            what = f"{one} and {other} of {spec.factory} share memory, and are two tensors"
            raise ConfigError(what, fix="register a clone() of one of them, or the same tensor by both names")


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Addresses of a tensor's first byte, and behind its last."""
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def trained(module: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    """The weights of a module."""
    return (parameter for parameter in module.parameters() if parameter.requires_grad)


def weight_ranges(members: tuple[Member, ...], spec: TorchSpec) -> list[WeightRange]:
    """Where the vector of all weights has each of them.

    Raises:
        ConfigError: one is not float32, or there are none.
    """
    ranges: list[WeightRange] = []
    start = 0
    for parameter, (name, *_), _ in (each for each in members if each.trained):
        if parameter.dtype != torch.float32:
            raise ConfigError(
                what=f"parameter {name} of {spec.factory} is {parameter.dtype}, and trained ones are float32",
                fix="call .float() on the module",
            )
        ranges.append(WeightRange(name, start, start + parameter.numel(), tuple(parameter.shape)))
        start += parameter.numel()
    if not ranges:
        raise ConfigError(what=f"the module of {spec.factory} has no parameters that take a gradient")
    return ranges


def _kept(members: tuple[Member, ...]) -> Iterator[Member]:
    """Those that are statistics."""
    return (each for each in members if each.names and not each.trained)


def statistics_of(members: tuple[Member, ...], spec: TorchSpec) -> tuple[Statistic, ...]:
    """The statistics, in the order in which their vector has them.

    Raises:
        ConfigError: one is of a type that float32 numbers cannot carry.
    """
    found: list[Statistic] = []
    start = 0
    for tensor, (name, *_), _ in _kept(members):
        if tensor.dtype not in _WIDE | _NARROW:
            frozen = isinstance(tensor, torch.nn.Parameter)
            kind = "frozen parameter" if frozen else "buffer"
            what = f"{kind} {name} of {spec.factory} is {tensor.dtype}, which float32 numbers cannot carry"
            fix = "make it float32" if frozen else "make it float32 or an integer, or register it with persistent=False"
            raise ConfigError(what, fix=fix)
        stop = start + tensor.numel() * (integers.PARTS if tensor.dtype in _WIDE else 1)
        found.append(Statistic(name, start, stop, tensor.shape, tensor.dtype))
        start = stop
    return tuple(found)


def owners_of(members: tuple[Member, ...]) -> tuple[tuple[Places, Layout], ...]:
    """By statistic, where the module has it and how it lies."""
    return tuple((each.places, Layout.of(each.tensor)) for each in _kept(members))


def passing_of(
    module: torch.nn.Module, members: tuple[Member, ...], device: torch.device
) -> tuple[tuple[Places, torch.Tensor | None], ...]:
    """Buffers that are no statistics: their places, and what the factory made of them."""
    nothing = tuple(
        (owner, name) for owner in module.modules() for name, buffer in owner._buffers.items() if buffer is None
    )
    made = tuple((each.places, each.tensor.clone().to(device)) for each in members if not each.names)
    return ((nothing, None), *made)
