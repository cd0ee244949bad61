"""PyTorch's generators, which all threads of a process share: seeded for one call at a time.

Which passes of a module draw from them is seen when they are first made, so that no others have to wait.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_TURN = threading.Lock()
"""Held by whoever draws."""


class Pass(enum.Enum):
    """A way through a module."""

    FORWARD = "forward"
    BACKWARD = "backward"
    EVALUATION = "evaluation"


class Randomness:
    """Which passes of a module draw random numbers, and its turns at the generators.

    Args:
        device: where the module is.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._draws: dict[Pass, bool] = {}

    def draws(self, *passes: Pass) -> bool:
        """Whether any of the passes draws; assumed of those that were never made."""
        return any(self._draws.get(each, True) for each in passes)

    @contextmanager
    def turn(self, seed: int, *passes: Pass) -> Iterator[None]:
        """The generators seeded and this thread's alone, unless none of the passes draws."""
        if not self.draws(*passes):
            yield
            return
        with seeded(seed, self._device):
            yield

    @contextmanager
    def watched(self, which: Pass) -> Iterator[None]:
        """Make a pass; the first of its kind, in a turn, says whether it draws."""
        if which in self._draws:
            yield
            return
        before = torch.get_rng_state()
        with _Watch() as watch:
            yield
        # Checkpoints put the generator back after they have drawn again; an extension's operations may bear no tag.
        self._draws[which] = watch.drew or not torch.equal(before, torch.get_rng_state())


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """A turn at the generators, seeded; they are put back as they were."""
    cuda = device.type == "cuda"
    with _TURN, torch.random.fork_rng(devices=[torch.cuda.current_device()] if cuda else []):
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed(seed)
        yield


class _Watch(TorchDispatchMode):  # type: ignore[misc]
    """Sees whether an operation draws, by the tag that PyTorch gives those."""

    drew = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.drew = self.drew or torch.Tag.nondeterministic_seeded in func.tags
        call: Callable[..., Any] = func
        return call(*args, **(kwargs or {}))
