"""The options that describe a simulated cluster, for every verb that simulates."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from ako_jobs.config import bytes_per_second
from dataflow.errors import ConfigError
from dataflow.sim.faults import parse_fault
from dataflow.sim.model import ClusterModel

_PANEL = "Simulated cluster (with --sim)"
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}

SimFlag = Annotated[bool, typer.Option("--sim", help="Simulate the job in this process, in virtual time.")]
BandwidthOption = Annotated[
    list[str] | None,
    typer.Option(
        "--bandwidth",
        metavar="RATE|NODE=RATE",
        help="What a node's link carries each way: 100mbit, 1gbit [default], 3=10mbit for node 3.",
        rich_help_panel=_PANEL,
    ),
]
LatencyOption = Annotated[
    str,
    typer.Option("--latency", metavar="TIME", help="Between two nodes: 100us [default], 20ms.", rich_help_panel=_PANEL),
]
ComputeOption = Annotated[
    str,
    typer.Option(
        "--compute",
        metavar="KIND",
        help="How long tasks take: measured [default] on this machine; or only gradients take time: constant, gamma, "
        "or gamma-heterogeneous (machines differ).",
        rich_help_panel=_PANEL,
    ),
]
StepTimeOption = Annotated[
    str,
    typer.Option(
        "--step-time",
        metavar="TIME",
        help="Mean time of a node's gradient, such as 5ms, in place of the measured one.",
        rich_help_panel=_PANEL,
    ),
]
TasksOption = Annotated[
    int | None, typer.Option("--tasks", help="Compute tasks of a node [default: 1].", min=1, rich_help_panel=_PANEL)
]
SpeedOption = Annotated[
    list[str] | None,
    typer.Option("--speed", metavar="NODE=FACTOR", help="A straggler or a faster node: 3=0.5.", rich_help_panel=_PANEL),
]
FaultOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="FAULT",
        help="fail:2@10 (node 2 at second 10), pause:2@10+1.5, slow:2@10+5x4, cut:0-2@10+3.",
        rich_help_panel=_PANEL,
    ),
]


def cluster_model(
    bandwidth: list[str] | None,
    latency: str,
    compute: str,
    step_time: str,
    tasks: int | None,
    speed: list[str] | None,
    fault: list[str] | None,
) -> ClusterModel | None:
    """The cluster that the options describe; None if none of them was given.

    Raises:
        ConfigError: one of them cannot be used.
    """
    if not any((bandwidth, latency, compute, step_time, tasks, speed, fault)):
        return None
    said: dict[str, Any] = {"rates": {}, "speeds": {}}
    for text in bandwidth or ():
        node, equals, rate = text.rpartition("=")
        if equals:
            said["rates"][_node(node, text, "3=10mbit")] = bytes_per_second(rate)
        else:
            said["rate"] = bytes_per_second(rate)
    for text in speed or ():
        node, _, factor = text.rpartition("=")
        said["speeds"][_node(node, text, "3=0.5")] = factor
    if latency:
        said["latency_s"] = duration(latency)
    if step_time:
        said["step_s"] = duration(step_time)
        said["compute"] = "constant"
    if compute:
        said["compute"] = compute
    if tasks is not None:
        said["tasks"] = tasks
    said["faults"] = tuple(parse_fault(text) for text in fault or ())
    try:
        return ClusterModel.model_validate(said)
    except ValidationError as error:
        first = error.errors()[0]
        option = {"speeds": "speed", "step_s": "step-time", "latency_s": "latency"}.get(str(first["loc"][0]), "compute")
        raise ConfigError(what=f"--{option}: {first['msg']}", got=first["input"]) from None


def duration(text: str) -> float:
    """Seconds of a time such as ``5ms``.

    Raises:
        ConfigError: it is not a time.
    """
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(us|ms|s)", text.strip())
    if not found:
        raise ConfigError(what="not a time", got=text, fix="write it like 100us, 5ms or 2s")
    return float(found[1]) * _UNITS[found[2]]


def _node(text: str, whole: str, example: str) -> int:
    if not text.isdecimal():
        raise ConfigError(what="not about a node", got=whole, fix=f"write it like {example}")
    return int(text)
