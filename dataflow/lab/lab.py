"""A lab on this machine: made, found again, changed while it is up, looked at, taken down.

Invariant: whatever is made bears the name of the state directory's lab, and nothing else is ever removed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataflow.clock import Clock
from dataflow.errors import LabError
from dataflow.lab.commands import fit, require_tools, run, run_all, run_json
from dataflow.lab.cores import find_cpu_control, procs_file
from dataflow.lab.plan import (
    Command,
    LabPlan,
    Station,
    cut_command,
    enter_command,
    is_cut,
    lab_name,
    leftovers,
    loss_commands,
    make_commands,
    mend_command,
    rate_commands,
    relay_arguments,
    relay_commands,
)
from dataflow.lab.processes import command_of, kill_all, processes
from dataflow.lab.state import LabState, forget_state, in_use, read_state, relay_log, write_state
from dataflow.runtime.starting import module_command

_RELAYS_S = 30.0
_FORCED_S = 10.0
_NAMED = Path("/run/netns")
_POLL_S = 0.02


@dataclass(frozen=True)
class Removed:
    """What was removed of a lab: how many of its namespaces, and how many processes were killed in them."""

    stations: int
    processes: int


@dataclass(frozen=True)
class Process:
    """A process of a station: its id and its command line."""

    pid: int
    command: str


@dataclass(frozen=True)
class StationStatus:
    """A station as it is now.

    Args:
        name: the host's number, or ``switch``.
        namespace: its name for ``ip netns``.
        address: where others reach it.
        rate: bytes per second that it can send and receive; None for the switch.
        cores: how many cores it may use; None: all.
        sent_nbytes, received_nbytes: bytes that its interface has counted since the lab was made, headers among them.
        cut_from: names of the stations that nothing passes to or from.
        lossy: whether a share of its packets is lost.
        processes: what runs there.
    """

    name: str
    namespace: str
    address: str
    rate: float | None
    cores: float | None
    sent_nbytes: int
    received_nbytes: int
    cut_from: tuple[str, ...]
    lossy: bool
    processes: tuple[Process, ...]


def up(plan: LabPlan, state_dir: Path, clock: Clock) -> Removed:
    """Make a lab, in place of the one that is up or of what an earlier command left behind.

    Args:
        plan: the lab; its name is that of the state directory's lab.
        state_dir: where it is noted.
        clock: the clock.

    Returns:
        What was there before.

    Raises:
        LabError: this machine cannot make it, and what is missing; or a job runs in the one that is up, or this does.
            Nothing of the new one is left then.
    """
    require_tools()
    _check_outside(plan.name)
    plan = fit(plan)
    with in_use(state_dir, alone=True):
        state = LabState(plan=plan, complete=False, lent=_lends(plan, read_state(state_dir)))
        write_state(state_dir, state)
        try:
            removed = _remove(plan.name, clock)
            _share_cores(plan)
            run_all(make_commands(plan))
            _start_relays(plan, state_dir, clock)
            write_state(state_dir, state.model_copy(update={"complete": True}))
        except BaseException:  # Ctrl-C too: what was begun is taken back
            _remove_all(state_dir, state, clock)
            raise
    return removed


def down(state_dir: Path, clock: Clock, *, force: bool = False) -> Removed:
    """Remove the lab of a state directory, or what is left of it, and end its processes.

    Args:
        state_dir: where it is noted.
        clock: the clock.
        force: kill what runs there first, a job and who started it too.

    Returns:
        What was there.

    Raises:
        LabError: a job runs in it, or this does; nothing has changed then.
    """
    require_tools()
    name, ended, deadline_s = lab_name(state_dir), 0, clock.now() + _FORCED_S
    _check_outside(name)
    with ExitStack() as held:
        while True:
            ended += kill_all(leftovers(name, _namespaces()), clock) if force else 0
            try:
                held.enter_context(in_use(state_dir, alone=True))
            except LabError:  # who holds it may be about to start something in it
                if not force or clock.now() > deadline_s:
                    raise
                clock.sleep(_POLL_S)
            else:
                break
        state = read_state(state_dir)
        if state is not None:
            with suppress(OSError):  # on a full disk, too, everything can be removed
                write_state(state_dir, state.model_copy(update={"complete": False}))
        removed = _remove_all(state_dir, state, clock)
    return Removed(removed.stations, removed.processes + ended)


def find(state_dir: Path) -> LabPlan:
    """The lab that is up.

    Raises:
        LabError: none is, or not all of it.
    """
    require_tools()
    state = read_state(state_dir)
    fix = "make one: ako lab up 4 --rate 100mbit"
    if state is None:
        raise LabError(what="no lab is up", got=str(state_dir), fix=fix)
    there = set(_namespaces())
    if not state.complete or any(station.namespace not in there for station in state.plan.stations):
        raise LabError(what="the lab is not whole: it was interrupted, or the machine restarted since", fix=fix)
    for number in _ended_relays(state.plan):
        log = relay_log(state_dir, number)
        raise LabError(what=f"the lab is not whole: the relay of host {number} has ended", got=_last_line(log), fix=fix)
    return state.plan


def as_it_is(plan: LabPlan) -> LabPlan:
    """A lab that is up, with the rates that its hosts have now."""
    for number, (host, station) in enumerate(zip(plan.hosts, status(plan), strict=False)):
        # The kernel keeps whole bytes.
        if station.rate is not None and station.rate != round(host.rate):
            plan = plan.with_rate(number, station.rate)
    return plan


def enter(plan: LabPlan, station: Station, command: Sequence[str]) -> Command:
    """What runs a command in a station of a lab that is up, with the station's share of the CPU."""
    control = None if station.cores is None else find_cpu_control()
    group = None if control is None else procs_file(control.group(plan.name, station.name))
    return enter_command(station, command, group)


def cut(one: Station, others: Sequence[Station]) -> None:
    """Let nothing more pass between one station and others."""
    for other in others:
        run_all([cut_command(one, other), cut_command(other, one)])


def cut_one_way(sender: Station, receiver: Station) -> None:
    """Let nothing more pass from one station to another, while all passes the other way."""
    run(cut_command(sender, receiver))


def lose(station: Station, share: float) -> None:
    """Lose a share of the packets that a station sends, and of those that it receives, until it is set to 0."""
    if share or _loses(station):
        run_all(loss_commands(station, share))


def mend(plan: LabPlan, one: Station, others: Sequence[Station]) -> None:
    """Take back cuts between one station and others, where there are any."""
    for other in others:
        for near, far in ((one, other), (other, one)):
            if far.name in _cut_from(plan, near):
                run(mend_command(near, far))


def set_rate(plan: LabPlan, host: int, rate: float) -> None:
    """Give a host another rate, in bytes per second, while whatever it does goes on."""
    burst_nbytes = max((int(bucket["burst"]) for bucket in _buckets(plan.host(host))), default=0)
    run_all(rate_commands(plan, host, plan.with_rate(host, rate).hosts[host].rate, burst_nbytes))


def status(plan: LabPlan) -> tuple[StationStatus, ...]:
    """Every station of a lab that is up: the hosts, then the switch."""
    return tuple(_status(plan, station) for station in plan.stations)


def _status(plan: LabPlan, station: Station) -> StationStatus:
    (link,) = run_json(("ip", "-n", station.namespace, "-j", "-s", "link", "show", "dev", station.device))
    rates = [float(bucket["rate"]) for bucket in _buckets(station)]
    return StationStatus(
        name=station.name,
        namespace=station.namespace,
        address=station.address,
        rate=rates[0] if rates else None,
        cores=station.cores,
        sent_nbytes=int(link["stats64"]["tx"]["bytes"]),
        received_nbytes=int(link["stats64"]["rx"]["bytes"]),
        cut_from=_cut_from(plan, station),
        lossy=_loses(station),
        processes=tuple(Process(each, command_of(each)) for each in processes(station.namespace)),
    )


def _buckets(station: Station) -> list[dict[str, Any]]:
    """The token buckets of a station's interface, as ``tc`` has them: one, or none."""
    qdiscs = run_json(("tc", "-n", station.namespace, "-j", "qdisc", "show", "dev", station.device))
    return [qdisc["options"] for qdisc in qdiscs if qdisc["kind"] == "tbf"]


def _loses(station: Station) -> bool:
    qdiscs = run_json(("tc", "-n", station.namespace, "-j", "qdisc", "show", "dev", station.device))
    return any(qdisc["kind"] == "clsact" for qdisc in qdiscs)


def _cut_from(plan: LabPlan, station: Station) -> tuple[str, ...]:
    """Names of the stations that one is cut off from: the kernel is asked, so that nothing else need remember."""
    neighbours = run_json(("ip", "-n", station.namespace, "-j", "neigh", "show", "nud", "permanent"))
    lost = {each["dst"] for each in neighbours if is_cut(each.get("lladdr", ""))}
    return tuple(other.name for other in plan.stations if other.address in lost)


def _check_outside(name: str) -> None:
    """Nothing, unless this runs in a lab of that name, whose processes are to be ended.

    Raises:
        LabError: it does.
    """
    here = Path("/proc/thread-self/ns/net").stat()
    for namespace in leftovers(name, _namespaces()):
        with suppress(OSError):
            if os.path.samestat(here, (_NAMED / namespace).stat()):
                fix = "leave what `ako lab exec` has started there first"
                raise LabError(what="this is inside of the lab", got=namespace, fix=fix)


def _share_cores(plan: LabPlan) -> None:
    control = find_cpu_control()
    for station in plan.stations:
        if station.cores is None:
            continue
        if control is None:
            what = "the CPU cannot be shared out: this machine has no control groups that limit it"
            raise LabError(what, fix="leave out --cpu and --cpus")
        control.make(plan.name, station.name, station.cores)


def _start_relays(plan: LabPlan, state_dir: Path, clock: Clock) -> None:
    """Start the relays, if packets need them, and return when each listens at both of its interfaces."""
    logs = [relay_log(state_dir, number) for number in range(len(plan.hosts))]
    run_all(relay_commands(plan, module_command("dataflow.lab.relay"), logs))
    listeners, deadline_s = 2 * len(plan.hosts) if plan.relayed else 0, clock.now() + _RELAYS_S
    while len(run(enter_command(plan.switch, ("cat", "/proc/net/packet"))).splitlines()) - 1 < listeners:
        if clock.now() > deadline_s:
            raise LabError(what=f"the relays of the lab do not start in {_RELAYS_S:g} s", fix="leave out --latency")
        clock.sleep(_POLL_S)


def _ended_relays(plan: LabPlan) -> list[int]:
    """The hosts whose packets nobody carries any more."""
    if not plan.relayed:
        return []
    running = [command_of(each) for each in processes(plan.switch.namespace)]
    return [
        number
        for number in range(len(plan.hosts))
        if not any(command.endswith(" ".join(relay_arguments(plan, number))) for command in running)
    ]


def _last_line(log: Path) -> str | None:
    """What a relay has said last, if it has said anything."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return lines[-1] if lines else None


def _namespaces() -> list[str]:
    return [line.split()[0] for line in run(("ip", "netns", "list")).splitlines() if line.strip()]


def _lends(plan: LabPlan, previous: LabState | None) -> bool:
    """Whether the root of the control groups hands the CPU down for labs of this state directory alone."""
    control = find_cpu_control() if any(host.cores is not None for host in plan.hosts) else None
    return (previous is not None and previous.lent) or (control is not None and control.lends())


def _remove_all(state_dir: Path, state: LabState | None, clock: Clock) -> Removed:
    """Remove all of a lab, what it changed for others, and the note."""
    removed = _remove(lab_name(state_dir), clock)
    control = find_cpu_control() if state is not None and state.lent else None
    if control is not None:
        control.take_back()
    forget_state(state_dir)
    return removed


def _remove(name: str, clock: Clock) -> Removed:
    """Remove all that bears the name of a lab."""
    found = leftovers(name, _namespaces())
    killed = kill_all(found, clock)
    for namespace in found:
        run(("ip", "netns", "delete", namespace))
    control = find_cpu_control()
    if control is not None:
        control.remove(name, clock)
    return Removed(len(found), killed)
