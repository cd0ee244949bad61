"""A job's cluster in a lab: the master at the switch, an agent on each host.

Whatever nodes send each other, and what they tell the master, crosses the hosts' shaped interfaces.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from dataflow.errors import AkoError, LabError, PlanError
from dataflow.lab.lab import enter
from dataflow.lab.plan import LabPlan, Station
from dataflow.lab.processes import processes, words_of
from dataflow.lab.state import in_use
from dataflow.runtime.auth import read_authority, read_token
from dataflow.runtime.client import Client
from dataflow.runtime.control_groups import usable_cores
from dataflow.runtime.local_cluster import MASTER, STATE_DIR, LocalCluster, Place
from dataflow.runtime.replies import JobStatus
from dataflow.runtime.state_dir import read_endpoint

_NAMESPACES: Final = Path("/var/run/netns")
_CLONE_NEWNET: Final = 0x40000000


def places(plan: LabPlan, nodes: int, cores: int) -> dict[str, Place]:
    """Where the processes of a cluster run: node i on host i.

    Args:
        plan: the lab, which is up.
        nodes: how many nodes.
        cores: of this machine; nodes whose host has no share of its own get as many as `LocalCluster` gives.

    Raises:
        PlanError: the lab has fewer hosts than that.
    """
    check_room(plan, nodes)
    found = {"master": _place(plan, plan.switch, None)}
    for number in range(nodes):
        share = plan.hosts[number].cores
        own = None if share is None else max(1, round(min(share, cores)))
        found[f"node-{number}"] = _place(plan, plan.host(number), own)
    return found


def check_room(plan: LabPlan, nodes: int) -> None:
    """Nothing, if a lab has a host for each of so many nodes.

    Raises:
        PlanError: it has fewer.
    """
    if nodes > len(plan.hosts):
        fix = f"make a larger lab, or use --nodes {len(plan.hosts)}"
        raise PlanError(what=f"a lab of {len(plan.hosts)} hosts cannot run the job's {nodes} nodes", fix=fix)


@contextmanager
def lab_cluster(plan: LabPlan, state_dir: Path, nodes: int, *, ahead: Sequence[str] = ()) -> Iterator[LocalCluster]:
    """A cluster of `nodes` nodes on the hosts of a lab that is up, gone when the ``with`` block ends.

    The calling thread, and those that it starts, are at the switch inside the block: only from there can the master
    be reached.

    Raises:
        PlanError: the lab has fewer hosts than that.
        LabError: the lab is being made or removed.
    """
    where = places(plan, nodes, usable_cores())
    with (
        in_use(state_dir, alone=False),
        _inside(plan.switch),
        LocalCluster(nodes, places=where, ahead=ahead) as cluster,
    ):
        yield cluster


def running_jobs(plan: LabPlan) -> list[JobStatus]:
    """The jobs that run in a lab, each with the newest statistics of its nodes; the one that was submitted first first.

    Raises:
        LabError: the lab cannot be entered.
    """
    with _inside(plan.switch):
        found = [job for folder in _masters(plan) for job in _jobs(folder)]
    return sorted(found, key=lambda job: job.submitted_s)


def _masters(plan: LabPlan) -> list[Path]:
    """State directories of the masters that `lab_cluster` has started. The kernel is asked: nobody need take notes."""
    commands = [words_of(process) for process in processes(plan.switch.namespace)]
    return [Path(words[words.index(STATE_DIR) + 1]) for words in commands if {MASTER, STATE_DIR} <= {*words}]


def _jobs(state_dir: Path) -> list[JobStatus]:
    """The jobs of a master that have not ended; none if it has only begun, or ends."""
    address = read_endpoint(state_dir)
    if not address:
        return []
    with suppress(AkoError), Client(address, read_token(state_dir), read_authority(state_dir)) as client:
        return [client.job(job.id) for job in client.jobs() if not job.ended]
    return []


def _place(plan: LabPlan, station: Station, cores: int | None) -> Place:
    # The addresses exist in the lab only: nobody outside of this machine can reach them.
    return Place(station.address, enter(plan, station, ()), cores, insecure=True)


@contextmanager
def _inside(station: Station) -> Iterator[None]:
    """Have the calling thread be in a station's network namespace inside the ``with`` block."""
    with open("/proc/thread-self/ns/net", "rb") as outside, open(_NAMESPACES / station.namespace, "rb") as inside:
        _enter_namespace(inside.fileno())
        try:
            yield
        finally:
            _enter_namespace(outside.fileno())


def _enter_namespace(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise LabError(what=f"cannot enter a network namespace of the lab: {os.strerror(ctypes.get_errno())}")
