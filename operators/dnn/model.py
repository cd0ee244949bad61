"""A network whose weights are one flat float32 vector, and its compiled gradient.

The functions release the GIL. Weights and images are only read; `out` and the workspace are written, so two
threads may share a model but never a workspace. Equal inputs give bit-identical results on one machine,
whatever the workspace held or how large it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.dnn.arrays import joined, read_only, require, views
from operators.dnn.evaluation import cross_entropy, softmax
from operators.dnn.init import initial_statistics, initial_weights
from operators.dnn.kernels import network
from operators.dnn.layers import Dropout
from operators.dnn.program import Program, compile_program
from operators.dnn.spec import ModelSpec, WeightRange, statistic_ranges, steps, weight_ranges

__all__ = ["Model", "ModelSpec", "WeightRange", "Workspace"]

_NOTHING = np.empty(0, np.float32)
_NO_LOGITS = np.empty((0, 0), np.float32)
_NO_LABELS = np.empty(0, np.int64)

_ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""


@dataclass(frozen=True, eq=False)
class Workspace:
    """Memory for one thread's computations on batches of up to `batch` images.

    program: the network as the kernels read it. buffer: flat float32, aligned to 64 bytes; its content never matters.
    """

    spec: ModelSpec
    batch: int
    program: Program
    buffer: npt.NDArray[np.float32]


class Model:
    """The functions of a network: initialise, differentiate, evaluate and predict, on a vector the caller owns."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.ranges = weight_ranges(spec)
        self.n_weights = self.ranges[-1].stop
        self.statistic_ranges = statistic_ranges(spec)
        self.n_statistics = self.statistic_ranges[-1].stop if self.statistic_ranges else 0
        self.integers: tuple[slice, ...] = ()
        self.n_classes = spec.shapes()[-1][0]
        self.random = any(isinstance(step.layer, Dropout) for step in steps(spec))

    def views(self, vector: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.float32]]:
        """View a vector (n_weights,) as named arrays, without copying: {"conv1.weight": (10, 1, 5, 5), ...}."""
        require("vector", vector, np.float32, (self.n_weights,))
        return views(vector, self.ranges)

    def initial(self, rng: np.random.Generator) -> npt.NDArray[np.float32]:
        """Draw initial weights (n_weights,) float32 as `spec.init` says; see `operators.dnn.init`."""
        return initial_weights(self.spec, rng)

    def initial_statistics(self) -> npt.NDArray[np.float32]:
        """Return the running statistics at the start, (n_statistics,) float32; see `operators.dnn.init`."""
        return initial_statistics(self.spec)

    def tensors(
        self, weights: npt.NDArray[np.float32], statistics: npt.NDArray[np.float32]
    ) -> dict[str, npt.NDArray[Any]]:
        """View weights and statistics as named arrays."""
        require("statistics", statistics, np.float32, (self.n_statistics,))
        return {**self.views(weights), **views(statistics, self.statistic_ranges)}

    def vectors(
        self, tensors: Mapping[str, npt.NDArray[Any]]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Join named arrays to weights and statistics.

        Raises:
            ValueError: the tensors are not those of this network.
        """
        unknown = tensors.keys() - {each.name for each in (*self.ranges, *self.statistic_ranges)}
        if unknown:
            msg = f"the network has no tensors {', '.join(sorted(unknown))}"
            raise ValueError(msg)
        return joined(tensors, self.ranges), joined(tensors, self.statistic_ranges)

    def rehearse(self) -> None:
        """Nothing can fail: the specification has been checked."""

    def workspace(self, batch: int) -> Workspace:
        """Allocate a workspace for batches of up to `batch` images; one per thread."""
        if batch < 1:
            msg = f"a workspace holds at least one image, got batch={batch}"
            raise ValueError(msg)
        program = compile_program(self.spec, batch)
        size = program.elements * 4
        memory = np.empty(size + _ALIGNMENT, np.uint8)
        begin = -memory.ctypes.data % _ALIGNMENT
        return Workspace(self.spec, batch, program, memory[begin : begin + size].view(np.float32))

    def gradient(
        self,
        weights: npt.NDArray[np.float32],
        images: npt.NDArray[np.float32],
        labels: npt.NDArray[np.int64],
        out: npt.NDArray[np.float32],
        workspace: Workspace,
        scale: float,
        *,
        statistics: npt.NDArray[np.float32],
        seed: int,
    ) -> tuple[float, int]:
        """Differentiate the softmax cross-entropy of a batch by the weights.

        Args:
            weights: (n_weights,) float32.
            images: (batch, channels, height, width) float32; the batch may be smaller than the workspace's, even 0.
            labels: (batch,) int64 in 0 <= label < n_classes.
            out: (n_weights,) float32, overwritten with scale * the sum over images of d loss_i / d weights.
            workspace: from `workspace`, used by no other thread meanwhile.
            scale: 1 / (images of the whole batch) makes `out` this shard's share of the mean gradient.
            statistics: (n_statistics,) float32, moved towards those of the batch in place.
            seed: 0 <= seed < 2**63, of what dropout drops.

        Returns:
            The summed loss in nats (unscaled), and how many images were classified correctly. A NaN among weights
            or images gives a NaN loss and does not raise.

        Raises:
            ValueError: an array of another shape, dtype or layout, a label out of range, another model's workspace.
        """
        self._check_inputs(weights, images, workspace)
        require("labels", labels, np.int64, (len(images),))
        for name, array, size in (("out", out, self.n_weights), ("statistics", statistics, self.n_statistics)):
            require(name, array, np.float32, (size,))
            if not array.flags.writeable:
                msg = f"{name} is read-only: pass a writable array"
                raise ValueError(msg)
        if not len(images):
            out[:] = 0
            return 0.0, 0
        loss_sum, correct = _run(
            weights, statistics, images, labels, out, _NO_LOGITS, workspace, scale, seed, training=True
        )
        if correct < 0:
            raise self._label_error(labels)
        return loss_sum, correct

    def evaluate(
        self,
        weights: npt.NDArray[np.float32],
        images: npt.NDArray[np.float32],
        labels: npt.NDArray[np.int64],
        workspace: Workspace,
        *,
        statistics: npt.NDArray[np.float32],
    ) -> tuple[float, int, npt.NDArray[np.int64]]:
        """Classify a batch and compare with its labels.

        Arguments and errors as for `gradient`. Returns the summed loss in nats, the number of correct predictions,
        and the predictions (batch,) int64; the lowest class wins a tie.
        """
        self._check_inputs(weights, images, workspace)
        require("labels", labels, np.int64, (len(images),))
        if len(labels) and (labels.min() < 0 or labels.max() >= self.n_classes):
            raise self._label_error(labels)
        return cross_entropy(self._logits(weights, images, workspace, statistics), labels)

    def predict(
        self,
        weights: npt.NDArray[np.float32],
        images: npt.NDArray[np.float32],
        workspace: Workspace,
        *,
        statistics: npt.NDArray[np.float32],
    ) -> npt.NDArray[np.float32]:
        """Return the probability of each class, (batch, n_classes) float32; arguments and errors as for `gradient`."""
        self._check_inputs(weights, images, workspace)
        return softmax(self._logits(weights, images, workspace, statistics))

    def compile(self) -> None:
        """Compile the kernels, or load them from disk, so that no training step waits for it (seconds when cold).

        Of several processes on a machine, each compiles a part, and loads the others' from disk.
        """
        weights = np.zeros(self.n_weights, np.float32)
        images = np.zeros((1, *self.spec.input), np.float32)
        labels = np.zeros(1, np.int64)
        statistics = self.initial_statistics()
        workspace = self.workspace(1)
        self.gradient(weights, images, labels, np.empty_like(weights), workspace, 1.0, statistics=statistics, seed=0)

    def _logits(
        self,
        weights: npt.NDArray[np.float32],
        images: npt.NDArray[np.float32],
        workspace: Workspace,
        statistics: npt.NDArray[np.float32],
    ) -> npt.NDArray[np.float32]:
        require("statistics", statistics, np.float32, (self.n_statistics,))
        logits = np.empty((len(images), self.n_classes), np.float32)
        statistics = np.require(statistics, requirements="W")  # the one type that is compiled
        if len(images):
            _run(weights, statistics, images, _NO_LABELS, _NOTHING, logits, workspace, 0.0, 0, training=False)
        return logits

    def _check_inputs(
        self, weights: npt.NDArray[np.float32], images: npt.NDArray[np.float32], workspace: Workspace
    ) -> None:
        if workspace.spec is not self.spec and workspace.spec != self.spec:
            msg = "the workspace belongs to another network: make one with this model's workspace()"
            raise ValueError(msg)
        if len(images) > workspace.batch:
            msg = f"{len(images)} images exceed the workspace's {workspace.batch}: split them or make a larger one"
            raise ValueError(msg)
        require("weights", weights, np.float32, (self.n_weights,))
        require("images", images, np.float32, (len(images), *self.spec.input))

    def _label_error(self, labels: npt.NDArray[np.int64]) -> ValueError:
        return ValueError(f"labels must be in 0 <= label < {self.n_classes}, got {labels.min()} to {labels.max()}")


def _run(
    weights: npt.NDArray[np.float32],
    statistics: npt.NDArray[np.float32],
    images: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    out: npt.NDArray[np.float32],
    logits: npt.NDArray[np.float32],
    workspace: Workspace,
    scale: float,
    seed: int,
    *,
    training: bool,
) -> tuple[float, int]:
    program, rows = workspace.program, images.reshape(len(images), -1)
    return network.run(
        program.table,
        read_only(weights),
        statistics,
        read_only(rows),
        read_only(labels),
        out,
        logits,
        workspace.buffer,
        program.chunk,
        float(scale),
        seed,
        training,
    )
