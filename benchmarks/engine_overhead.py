"""What the engine costs on one node: a training step under it against the same kernels in a bare loop.

    python benchmarks/engine_overhead.py --data-dir DIR [--batches 64 16] [--steps 400] [--pairs 5] [--json]

Two things are timed in turns, A B A B, on the paper's MNIST network:

A. A bare loop in one thread: `Model.gradient` and ``weights -= lr * gradient`` over mini-batches that are already
   normalised and in memory.
B. The same mini-batches under a `NodeDriver`: the graph of topology ``ako`` on one node with one compute task, on an
   event loop with task pools, over the memory network. Reading, normalising, the window, the rotation and all
   bookkeeping are part of the step.

Both give the same weights bit for bit, which is checked. A step lasts from its own beginning to that of
the next; start-up, the first steps and the validation after the last one are left out. The target in
docs/decisions/0014 is that B takes at most 5% or 150 us per step more than A, whichever is more. Run it with nothing
else on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as in a job process; read when NumPy and SciPy load

import numpy as np
from pydantic import PrivateAttr

from ako_jobs import ako
from ako_jobs.worker import Setting
from dataflow.message import Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions
from dataflow.plan.compile import compile_graph
from dataflow.ports import Emission
from dataflow.runtime.job_process import SWITCH_S
from dataflow.testing.in_process import run_in_process
from dataflow.transport.memory import MemoryNetwork
from operators.course import CourseState
from operators.dnn import Model
from operators.messages import Batch
from operators.roll import Present
from operators.source import Source
from operators.vector_state import VectorState

WARM_STEPS = 20
"""First steps, which are not counted."""


class StepTimes:
    """When steps begin, and how much time on the processor they take together."""

    def __init__(self) -> None:
        self._began_s: list[float] = []
        self._cpu_s: list[float] = []

    def begin(self, step: int, steps: int) -> None:
        """Note that a step of so many begins."""
        if step in (WARM_STEPS, steps - 1):  # not at every step: to ask for this takes as long as small steps do
            self._cpu_s.append(time.process_time())
        self._began_s.append(time.perf_counter())

    @property
    def wall_us(self) -> float:
        """Median of what the counted steps took, in microseconds."""
        return 1e6 * statistics.median(after - before for before, after in pairwise(self._began_s[WARM_STEPS:]))

    @property
    def cpu_us(self) -> float:
        """Mean time on the processor of the counted steps, in microseconds."""
        first, last = self._cpu_s
        return 1e6 * (last - first) / (len(self._began_s) - 1 - WARM_STEPS)


class TimedSource(Source):
    """A source that notes when its steps begin.

    Args:
        steps: of the job; the last one is not counted, since the end of the job follows it.
    """

    steps: int
    _times: StepTimes = PrivateAttr(default_factory=StepTimes)

    def process(self, tick: Tick, roll: Present, course: CourseState, node: NodeContext) -> Emissions:
        """The shard of the mini-batch, as ever."""
        if tick.step < self.steps:
            self._times.begin(tick.step, self.steps)
        return super().process(tick, roll, course, node)

    @property
    def times(self) -> StepTimes:
        """When steps began."""
        return self._times


@dataclass(frozen=True)
class Comparison:
    """Times of a step, in microseconds: medians over the runs of the median over a run's steps.

    Args:
        batch: images of a mini-batch.
        bare_us, engine_us: of A and of B.
        extra_us: median of the differences of the pairs.
        extra_low_us, extra_high_us: the least and the largest of them.
        extra_cpu_us: median of the differences in processor time.
        target_us: what the difference may be.
    """

    batch: int
    bare_us: float
    engine_us: float
    extra_us: float
    extra_low_us: float
    extra_high_us: float
    extra_cpu_us: float
    target_us: float


def compare(data_dir: str, batch: int, steps: int, pairs: int) -> Comparison:
    """Time both in turns."""
    config = ako.Config.parse(
        {
            "data": "mnist",
            "data_dir": data_dir,
            "model": "paper",
            "batch": batch,
            "warm_start": 0,
            "average": 0,
            "epochs": 1,
        }
    )
    setting = Setting.of(config)
    config = config.model_copy(update={"epochs": steps * batch / setting.train_images})
    setting = Setting.of(config)
    normalised = _batches(setting, steps)
    bare: list[StepTimes] = []
    engine: list[StepTimes] = []
    for _ in range(pairs):
        weights, times = _bare(setting, normalised)
        bare.append(times)
        replica, times = _engine(config, steps)
        engine.append(times)
        if not np.array_equal(weights, replica):
            sys.exit("the weights differ: the engine did not do the same steps")
    extra_us = [b.wall_us - a.wall_us for a, b in zip(bare, engine, strict=True)]
    bare_us = statistics.median(a.wall_us for a in bare)
    return Comparison(
        batch=batch,
        bare_us=bare_us,
        engine_us=statistics.median(b.wall_us for b in engine),
        extra_us=statistics.median(extra_us),
        extra_low_us=min(extra_us),
        extra_high_us=max(extra_us),
        extra_cpu_us=statistics.median(b.cpu_us - a.cpu_us for a, b in zip(bare, engine, strict=True)),
        target_us=max(0.05 * bare_us, 150.0),
    )


def _batches(setting: Setting, steps: int) -> list[Batch]:
    """The normalised mini-batches."""
    assert setting.normalise is not None
    config, node = setting.config, NodeContext(seed=0)
    source = Source(data=setting.data, batch=config.batch, holdout=config.holdout)
    source.open(node)
    batches, course = [], CourseState()
    for step in range(steps):
        (effect,) = source.process(Tick(step, 0, 1), Present(settled=True), course, node)
        assert isinstance(effect, Emission)
        assert isinstance(effect.message, Batch)
        batches.append(effect.message.with_images(setting.normalise.apply(effect.message.images)))
    return batches


def _bare(setting: Setting, batches: list[Batch]) -> tuple[np.ndarray, StepTimes]:
    """Weights after the bare loop, and the times of its steps."""
    model = Model(setting.model)
    weights = model.initial(np.random.default_rng(np.random.SeedSequence(0, spawn_key=(0,))))
    gradient, workspace = np.empty_like(weights), model.workspace(setting.config.batch)
    statistics = model.initial_statistics()
    lr = np.float32(setting.config.lr)
    times = StepTimes()
    for step, batch in enumerate(batches):
        times.begin(step, len(batches))
        scale = 1.0 / len(batch.images)
        model.gradient(
            weights, batch.images, batch.labels, gradient, workspace, scale, statistics=statistics, seed=step
        )
        weights -= lr * gradient
    return weights, times


def _engine(config: ako.Config, steps: int) -> tuple[np.ndarray, StepTimes]:
    """Weights after a job on one node, and the times of its steps."""
    graph = ako.build(config)
    source = Source.model_validate_json(graph.operator("source").params)
    graph = graph.replace("source", TimedSource(steps=steps, **dict(source)))
    network = MemoryNetwork()
    run = run_in_process(compile_graph(graph, 1), lambda _node: network)
    (node,) = run.nodes
    timed, replica = node.operators["source"], node.states["replica"]
    assert isinstance(timed, TimedSource)
    assert isinstance(replica, VectorState)
    return replica.values, timed.times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="folder of the MNIST files")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 16], help="images of a mini-batch")
    parser.add_argument("--steps", type=int, default=400, help="of each run")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each kind")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_S)
    results = [compare(options.data_dir, batch, options.steps, options.pairs) for batch in options.batches]
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
        return
    print("batch  bare loop  engine     extra  (of the pairs)       processor  target")
    for result in results:
        spread = f"({result.extra_low_us:.0f} to {result.extra_high_us:.0f})"
        met = "met" if result.extra_us <= result.target_us else "missed"
        print(
            f"{result.batch:5}  {result.bare_us:6.0f} us  {result.engine_us:6.0f} us  {result.extra_us:5.0f} us"
            f"  {spread:18}  {result.extra_cpu_us:6.0f} us  {result.target_us:.0f} us {met}"
        )


if __name__ == "__main__":
    main()
