"""Validate: accuracy and loss of the nodes' models, from what each has made of its share of the images."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import PrivateAttr

from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Operator
from dataflow.ports import In, Out
from dataflow.state import State, StateElement, StateKind, Writes
from operators.data import DataRef, open_data
from operators.messages import Examined, Predictions, Validation

PATIENCE = 2
"""Validations that others may be ahead of a node before they are reported without it."""


@dataclass
class ExaminationsState(State):
    """Shares of validations that wait for others.

    Args:
        turns: those of validations that are not reported yet, by turn, then by node.
        newest: by node, the turn of its last share.
        left: nodes of which no shares come any more.
        final: that of the final validation, which is reported last.
        reported: turn of the last validation that was reported, or given up.
        over: whether the final one was reported.
    """

    turns: dict[int, dict[int, Examined]] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    final: Examined | None = None
    reported: int = 0
    over: bool = False

    def take(self, share: Examined) -> None:
        """Take in a share; one that is too late counts no more."""
        if share.final:
            self.final = share
        elif share.turn > self.reported and not self.over:
            self.turns.setdefault(share.turn, {})[share.origin] = share
            self.newest[share.origin] = share.turn

    def next(self, *, end: bool = False) -> Sequence[Examined]:
        """The shares of the next validation that is to be reported, by node; empty if there is none yet.

        A validation waits for all who share it, but not for those that have left, and for stragglers only until half of
        all who share it or more have come `PATIENCE` validations further. One of which fewer than half have sent their
        shares then is given up: that is so when nodes stop at different steps.

        Args:
            end: no more shares come.
        """
        while self.turns:
            turn = min(self.turns)
            found = self.turns[turn]
            sharing = {int(node) for share in found.values() for node in share.nodes}
            if not (end or self._is_ripe(turn, found, sharing - self.left)):
                return ()
            del self.turns[turn]
            self.reported = turn
            if 2 * len(found) >= len(sharing):
                return [found[origin] for origin in sorted(found)]
        final, self.final = self.final, None
        self.over |= final is not None
        return [final] if final else []

    def _is_ripe(self, turn: int, found: Collection[int], sharing: Collection[int]) -> bool:
        if all(node in found or self.newest.get(node, 0) > turn for node in sharing):
            return True
        further = sum(self.newest.get(node, 0) >= turn + PATIENCE for node in sharing)
        return 2 * further >= len(sharing)

    def tensors(self) -> dict[str, np.ndarray]:
        """None: shares under way are not part of a checkpoint."""
        return {}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Start without shares."""
        self.turns.clear()
        self.newest.clear()
        self.final, self.reported, self.over = None, 0, False


class Examinations(StateElement):
    """Shares of validations, on the node that adds them up."""

    kind: ClassVar[StateKind] = StateKind.LOCAL

    def create(self, _node: NodeContext) -> ExaminationsState:
        """No shares yet."""
        return ExaminationsState()


class Validate(Operator):
    """Adds up what the nodes that share a validation have made of their parts, and reports it, one after the other.

    So it is the mean of their models, each on images of its own, that a result tells of; the final one is that of the
    model which is kept. If a node has died or lags behind, the result is that of the images which the others have, and
    says of how many.

    Args:
        data: the data set.
        holdout: fraction of the training images held out, as in `Source`.
    """

    pool = "network"
    receives = True
    data: DataRef
    holdout: float = 0.0
    examined = In(Examined, capacity=64)
    whole = In(Examined, capacity=64)
    results = Out(Validation, reported=True)
    predictions = Out(Predictions)
    waiting = Writes("examinations")

    _labels: npt.NDArray[np.int64] = PrivateAttr()

    def open(self, _node: NodeContext) -> None:
        """Open the data."""
        self._labels = open_data(self.data).test_labels

    def process(self, share: Examined, waiting: ExaminationsState) -> Emissions:
        """Take in a share; report the validations that are whole by it."""
        waiting.take(share)
        yield from self._report(waiting)

    def on_left(self, origin: int, waiting: ExaminationsState) -> Emissions:
        """Report what only a node that sends nothing any more was missing from."""
        waiting.left.add(origin)
        yield from self._report(waiting)

    def on_joined(self, origin: int, waiting: ExaminationsState) -> Emissions:
        """Wait for a node that has come back, too."""
        waiting.left.discard(origin)
        waiting.newest.pop(origin, None)
        yield from ()

    def on_end(self, waiting: ExaminationsState) -> Emissions:
        """Report what is left."""
        yield from self._report(waiting, end=True)

    def _report(self, waiting: ExaminationsState, *, end: bool = False) -> Emissions:
        while shares := waiting.next(end=end):
            labels = [self._labels[np.searchsorted(each.nodes, each.origin) :: len(each.nodes)] for each in shares]
            tested, held_out = sum(map(len, labels)), sum(each.held_out for each in shares)
            if not tested or (self.holdout and not held_out):
                continue  # there are more nodes than images, and those with images have died
            images = round(fmean(each.images for each in shares))
            yield self.results(
                Validation(
                    step=round(fmean(each.step for each in shares)),
                    images=images,
                    epoch=fmean(each.epoch for each in shares),
                    tested=tested,
                    accuracy=sum(each.correct for each in shares) / tested,
                    loss=sum(each.loss for each in shares) / tested,
                    validation_accuracy=sum(each.held_out_correct for each in shares) / held_out if held_out else None,
                    validation_loss=sum(each.held_out_loss for each in shares) / held_out if held_out else None,
                    training_loss=fmean(each.training_loss for each in shares),
                    final=shares[0].final,
                )
            )
            predicted = np.concatenate([each.predicted for each in shares]).astype(np.int64)
            yield self.predictions(Predictions(images, np.concatenate(labels), predicted))
