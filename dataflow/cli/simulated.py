"""The options that describe a simulated cluster, for every verb that simulates."""

from __future__ import annotations

from typing import Annotated

import typer

from ako_jobs.cluster_options import ClusterOptions
from dataflow.sim.model import MOST_TASKS

_PANEL = "Simulated cluster (with --sim)"

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
SharesOption = Annotated[
    str,
    typer.Option(
        "--shares",
        metavar="KIND",
        help="How what a node sends to several others at once shares its link: even [default], or tcp, as unevenly as "
        "connections do whose windows differ.",
        rich_help_panel=_PANEL,
    ),
]
ComputeOption = Annotated[
    str,
    typer.Option(
        "--compute",
        metavar="KIND",
        help="How long tasks take: measured [default] on this machine, with the "
        "engine's own time; or only gradients take time: constant, gamma, "
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
    int | None,
    typer.Option(
        "--tasks",
        metavar="N",
        help="Compute tasks of a node [default: 1].",
        min=1,
        max=MOST_TASKS,
        rich_help_panel=_PANEL,
    ),
]
SpeedOption = Annotated[
    list[str] | None,
    typer.Option("--speed", metavar="NODE=FACTOR", help="A straggler or a faster node: 3=0.5.", rich_help_panel=_PANEL),
]
CpuOption = Annotated[
    float | None,
    typer.Option(
        "--cpu",
        metavar="CORES",
        help="What each node may use of the processor, in slices of 20 ms, as a lab's host or a container: 0.5 of a "
        "core [default: a core for each task].",
        min=0.001,
        max=MOST_TASKS,
        rich_help_panel=_PANEL,
    ),
]
CoresOption = Annotated[
    int | None,
    typer.Option(
        "--cores",
        metavar="N",
        help="Those of one machine that all nodes share [default: each has a machine of its own].",
        min=1,
        max=MOST_TASKS,
        rich_help_panel=_PANEL,
    ),
]
FaultOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="FAULT",
        help="fail:2@10 (node 2 at second 10), fail:2@10+5 (for 5 s), pause:2@10+1.5, slow:2@10+5x4, cut:0-2@10+3, "
        "rate:2@10=10mbit, leave:2@10 (node 2 is drained), join@10 (another machine joins; see max_nodes).",
        rich_help_panel=_PANEL,
    ),
]


def cluster_options(
    bandwidth: list[str] | None,
    latency: str,
    shares: str,
    compute: str,
    step_time: str,
    tasks: int | None,
    speed: list[str] | None,
    cpu: float | None,
    cores: int | None,
    fault: list[str] | None,
) -> ClusterOptions | None:
    """The options that were given; None if none of them was."""
    given = ClusterOptions(
        bandwidth=tuple(bandwidth or ()),
        latency=latency,
        shares=shares,
        compute=compute,
        step_time=step_time,
        tasks=tasks,
        speed=tuple(speed or ()),
        cpu=cpu,
        cores=cores,
        fault=tuple(fault or ()),
    )
    return None if given == ClusterOptions() else given
