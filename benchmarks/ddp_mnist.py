"""One rank of a PyTorch DistributedDataParallel run on MNIST over gloo; `lab_mnist.py` starts one on each host.

    python benchmarks/ddp_mnist.py '{"rank": 0, "world": 4, "address": "198.18.0.1", ...}'

What a careful user of DDP writes: tensors in memory and no DataLoader, one thread of PyTorch's, contiguous or
channels_last, whichever is faster in a short trial before the time begins, gradients in views of the one bucket. In
every epoch all ranks draw the same order of the images, and each takes every world-th of them. Rank 0 prints the run.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mnist_one_node import TARGET, faster_layout, parts, reached, torch_accuracy
from mnist_torch_job import layers
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from ako_jobs import datasets
from operators.passes import Passes
from operators.schedule import Constant, Cosine, Schedule, Step

_PORT = 29500
_GIVE_UP = timedelta(seconds=60)
_PLAIN_STEPS = 10


@dataclass(frozen=True)
class Job:
    """What a rank is told.

    Args:
        rank: its number.
        world: how many ranks there are.
        address: of rank 0.
        hook: how gradients are sent: plain, fp16, or powersgd (rank 2).
        lr, batch, momentum, nesterov, epochs: of the training; batch is of one rank.
        schedule: constant, cosine over all epochs, or step.
        warmup: epochs over which the rate rises from a share of one rank to all of it.
        milestones, gamma: with step, epochs at which the rate falls, such as 0.8,1.2, and its factor there.
        init: initial weights, uniform or glorot.
        average: epochs over which weights are averaged for validations; 0: they are not.
        seed: of initial weights and orders.
        data_dir: folder of the MNIST files.
        validate_every: images of all ranks between two validations.
        shared: whether every rank validates its share of the test images, or rank 0 all while the others wait.
        limit: seconds of the run.
        target: accuracy that ends the run once it is held.
    """

    rank: int
    world: int
    address: str
    hook: str
    data_dir: str
    lr: float = 0.1
    batch: int = 32
    momentum: float = 0.0
    nesterov: bool = False
    schedule: str = "constant"
    warmup: float = 0.0
    milestones: str = ""
    gamma: float = 0.1
    epochs: float = 8.0
    init: str = "uniform"
    average: float = 0.0
    seed: int = 0
    validate_every: int = 12_000
    shared: bool = True
    limit: float = 120.0
    target: float = TARGET

    def to_json(self) -> str:
        """The job as text."""
        return json.dumps(asdict(self))


def train(job: Job) -> dict[str, Any]:
    """Train until the target is held, the epochs are over or the time is; every rank returns the same validations."""
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    (images, labels), tests = (
        (torch.from_numpy(pixels), answers) for pixels, answers in parts(datasets.load("mnist", job.data_dir))
    )
    network = layers(job.init)  # DDP gives all ranks those of rank 0
    layout = _layout_of_all(images[: job.batch], labels[: job.batch])
    images = images.contiguous(memory_format=layout)
    model = DistributedDataParallel(
        network.to(memory_format=layout), broadcast_buffers=False, gradient_as_bucket_view=True
    )
    _register(model, job.hook)
    optimizer = torch.optim.SGD(network.parameters(), lr=job.lr, momentum=job.momentum, nesterov=job.nesterov)
    share = len(images) // job.world
    per_epoch = -(-share // job.batch)
    total = round(job.epochs * per_epoch)
    schedule = _schedule(job, Passes(images=len(images), batch=job.batch))
    averaged = Averaged(network, job.average * len(images) / (job.batch * job.world)) if job.average else None
    validate = _validation(job, averaged.network if averaged else network, tests, layout)
    validations: list[tuple[float, int, float]] = []
    dist.barrier()
    seen, step, begin, over = 0, 0, time.perf_counter(), False
    for step in range(total):
        position = step % per_epoch
        if position == 0:
            mine = torch.randperm(len(images))[job.rank :: job.world][:share]
        rows = mine[position * job.batch : (position + 1) * job.batch]
        for group in optimizer.param_groups:
            group["lr"] = schedule.at(step + 1, job.world)
        optimizer.zero_grad(set_to_none=False)
        torch.nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
        if averaged is not None:
            averaged.follow()
        before, seen = seen, seen + len(rows) * job.world
        if seen // job.validate_every > before // job.validate_every or step == total - 1:
            accuracy, over = validate(time.perf_counter() - begin > job.limit)
            validations.append((time.perf_counter() - begin, seen, accuracy))
            if over or reached(validations, job.target):
                break
    return {"run_s": time.perf_counter() - begin, "steps": step + 1, "validations": validations}


class Averaged:
    """A network whose weights are the average of another's over its last steps, as `operators.average` has it."""

    def __init__(self, source: Any, steps: float) -> None:
        self.network = copy.deepcopy(source)
        self._mine, self._source = (list(each.parameters()) for each in (self.network, source))
        self._steps, self._count = max(1.0, steps), 0

    @torch.no_grad()
    def follow(self) -> None:
        """Take in the weights after a step."""
        self._count += 1
        torch._foreach_lerp_(self._mine, self._source, max(1.0 / self._count, 1.0 / self._steps))


def _layout_of_all(images: Any, labels: Any) -> Any:
    """The memory layout that is faster on rank 0: DDP wants the same on all ranks, and trials may differ."""
    layouts = (torch.contiguous_format, torch.channels_last)
    chosen = torch.tensor(layouts.index(faster_layout(images, labels)))
    dist.broadcast(chosen, src=0)
    return layouts[int(chosen)]


def _schedule(job: Job, passes: Passes) -> Schedule:
    """The learning rate of each step, as Ako's workers have it of their gradients."""
    decay: Constant | Cosine | Step = Constant()
    if job.schedule == "cosine":
        decay = Cosine(end=job.epochs)
    elif job.schedule == "step":
        decay = Step(milestones=tuple(float(epoch) for epoch in job.milestones.split(",") if epoch), gamma=job.gamma)
    return Schedule(lr=job.lr, warmup=job.warmup, decay=decay, passes=passes)


def _register(model: Any, hook: str) -> None:
    if hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=_PLAIN_STEPS)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _validation(job: Job, network: Any, tests: Any, layout: Any) -> Callable[[bool], tuple[float, bool]]:
    """What measures the accuracy, and tells all ranks of it and of whether rank 0 says that the time is over."""
    total = len(tests[1])
    mine = slice(job.rank, None, job.world) if job.shared else slice(None)
    images, answers = tests[0][mine].contiguous(memory_format=layout), tests[1][mine]

    def validate(over: bool) -> tuple[float, bool]:
        busy = job.shared or job.rank == 0
        right = round(torch_accuracy(network, images, answers) * len(answers)) if busy else 0
        told = torch.tensor([right, int(over and job.rank == 0)])
        dist.all_reduce(told)
        return int(told[0]) / total, bool(told[1])

    return validate


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    place = f"tcp://{job.address}:{_PORT}"
    dist.init_process_group("gloo", init_method=place, rank=job.rank, world_size=job.world, timeout=_GIVE_UP)
    result = train(job)
    dist.destroy_process_group()
    if job.rank == 0:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
