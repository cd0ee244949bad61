"""``ako lab``: an emulated cluster on this machine. Imports no NumPy before a job is run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from dataflow.cli.common import JsonFlag, examples, finite, megabytes, note, print_json, print_table, verbs
from dataflow.cli.jobs import measured_job, show_job
from dataflow.cli.main import main
from dataflow.clock import SystemClock
from dataflow.errors import ConfigError
from dataflow.lab import lab, processes
from dataflow.lab.cluster import running_jobs
from dataflow.lab.plan import CORES, MOST_HOSTS, RATES, LabPlan, Station, lab_name
from dataflow.quantities import bandwidth_text, bytes_per_second, duration
from dataflow.runtime.replies import JobStatus
from dataflow.runtime.state_dir import default_state_dir

app = verbs()
_HELP = "Emulate a cluster on this machine: hosts on a switch, with shaped links and shares of the CPU. Needs root."
_lab = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=_HELP)
app.add_typer(_lab, name="lab")
_FAULT_HELP = "Disturb the lab while a job runs in it."
_fault = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=_FAULT_HELP)
_lab.add_typer(_fault, name="fault")

HostArgument = Annotated[int, typer.Argument(metavar="HOST", min=0, help="Its number, from 0.")]
_PASS_ON = {"ignore_unknown_options": True}


@_lab.command(
    epilog=examples(
        "ako lab up 4 --rate 100mbit",
        "ako lab up 4 --rate 100mbit --cpu 0.5",
        "ako lab up 3 --rates 100mbit,100mbit,10mbit --cpus 1,1,0.25",
        "ako lab run ako data=mnist",
        "ako lab down",
    )
)
def up(
    hosts: Annotated[int, typer.Argument(metavar="N", min=1, max=MOST_HOSTS, help="How many hosts.")],
    rate: Annotated[
        str,
        typer.Option("--rate", metavar="RATE", help="What every host can send, and receive: 100mbit [default: 1gbit]."),
    ] = "",
    rates: Annotated[
        str, typer.Option("--rates", metavar="RATE,...", help="One for each host: a slow link among fast ones.")
    ] = "",
    cpu: Annotated[
        str, typer.Option("--cpu", metavar="CORES", help="What every host may use of the CPU: 0.5 of a core.")
    ] = "",
    cpus: Annotated[
        str, typer.Option("--cpus", metavar="CORES,...", help="One for each host: a straggler among fast ones.")
    ] = "",
    latency: Annotated[
        str,
        typer.Option("--latency", metavar="TIME", help="From one host to another: 0.2ms."),
    ] = "",
    json: JsonFlag = False,
) -> None:
    """Make a lab of N hosts.

    It takes the place of one that is up, or of what was left of one. Each host is a network namespace of its own on a
    switch. What it sends and what it receives is limited to its rate, and what its processes compute together to its
    share of the CPU. `ako lab down` removes everything.
    """
    state_dir = default_state_dir()
    shares = [
        (_rate(link or "1gbit"), _cores(share))
        for link, share in zip(_each(hosts, rate, rates, "--rate"), _each(hosts, cpu, cpus, "--cpu"), strict=True)
    ]
    plan = LabPlan.parse(
        {
            "name": lab_name(state_dir),
            "hosts": [{"rate": link, "cores": cores} for link, cores in shares],
            "latency_s": duration(latency) if latency else 0.0,
        }
    )
    removed = lab.up(plan, state_dir, SystemClock())
    if removed.stations:
        note(f"removed what was there: {removed.stations} namespaces, {removed.processes} processes")
    _show(plan, (), json=json)


@_lab.command(epilog=examples("ako lab status --json"))
def status(json: JsonFlag = False) -> None:
    """Show the hosts of the lab, and the jobs that run in it.

    Of each host: its address, rate, share of the CPU, traffic so far, whom it is cut off from, whether packets are
    lost, and its processes. Of each job: what `ako status ID` shows.
    """
    plan = lab.find(default_state_dir())
    _show(plan, running_jobs(plan), json=json)


@_lab.command(
    add_help_option=False,
    context_settings=_PASS_ON,
    epilog=examples("ako lab run ako data=mnist --out results", "ako lab run all_to_all --nodes 2"),
)
def run(
    arguments: Annotated[list[str], typer.Argument(metavar="JOB [ARGUMENT]", help="As for `ako run`.")],
) -> None:
    """Run a job in the lab: the same as `ako run --lab`."""
    raise typer.Exit(main(["run", "--lab", *arguments]))


@_lab.command(
    "exec", context_settings=_PASS_ON, epilog=examples("ako lab exec 0 -- ping 198.18.0.2", "ako lab exec switch -- sh")
)
def execute(
    host: Annotated[str, typer.Argument(metavar="HOST", help="Its number, from 0, or switch.")],
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="A program and its arguments.")],
) -> None:
    """Run a command on a host.

    It runs in the host's network namespace and within its share of the CPU. Exit code: that of the command.
    """
    plan = lab.find(default_state_dir())
    program, *arguments = lab.enter(plan, plan.station(host), command)
    os.execvp(program, [program, *arguments])


@_lab.command(epilog=examples("ako lab down", "ako lab down --force"))
def down(
    force: Annotated[
        bool, typer.Option("--force", help="Even if a job runs in it, which is killed, and who started it too.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Remove the lab and end its processes, unless a job runs in it.

    What is left of one that was interrupted is removed too, and nothing else.
    """
    removed = lab.down(default_state_dir(), SystemClock(), force=force)
    if json:
        print_json(removed)
    else:
        note(f"removed {removed.stations} namespaces and ended {removed.processes} processes")


OtherArgument = Annotated[
    int | None, typer.Argument(metavar="[OTHER]", min=0, help="The host at the other end; all stations if left out.")
]


@_fault.command(epilog=examples("ako lab fault cut 0 2", "ako lab fault cut 1", "ako lab fault cut 0 2 --one-way"))
def cut(
    host: HostArgument,
    other: OtherArgument = None,
    one_way: Annotated[bool, typer.Option("--one-way", help="Only what the first host sends.")] = False,
) -> None:
    """Cut the link between two hosts, or a host off from everybody, the master too."""
    plan = lab.find(default_state_dir())
    one, others = plan.host(host), _others(plan, host, other)
    if not one_way:
        lab.cut(one, others)
        return
    for each in others:
        lab.cut_one_way(one, each)


@_fault.command(epilog=examples("ako lab fault mend 0 2", "ako lab fault mend 1"))
def mend(host: HostArgument, other: OtherArgument = None) -> None:
    """Mend what was cut between two hosts, or all that was cut of one."""
    plan = lab.find(default_state_dir())
    lab.mend(plan, plan.host(host), _others(plan, host, other))


@_fault.command("rate", epilog=examples("ako lab fault rate 2 10mbit"))
def change_rate(
    host: HostArgument,
    rate: Annotated[str, typer.Argument(metavar="RATE", help="What it can send, and receive, from now on: 10mbit.")],
) -> None:
    """Give a host another rate, while what it does goes on."""
    plan = lab.find(default_state_dir())
    plan.host(host)
    lab.set_rate(plan, host, _rate(rate))


@_fault.command(epilog=examples("ako lab fault loss 2 0.05", "ako lab fault loss 2 0"))
def loss(
    host: HostArgument,
    share: Annotated[
        float,
        typer.Argument(
            metavar="SHARE", min=0, max=1, callback=finite, help="Of its packets, each way; 0: none any more."
        ),
    ],
) -> None:
    """Lose a share of the packets that a host sends, and of those that it receives."""
    lab.lose(lab.find(default_state_dir()).host(host), share)


@_fault.command(epilog=examples("ako lab fault pause 1 5"))
def pause(
    host: HostArgument,
    seconds: Annotated[
        float,
        typer.Argument(metavar="SECONDS", min=0, max=86400, callback=finite, help="How long they are stopped."),
    ],
) -> None:
    """Stop the processes of a host for a while.

    Returns when they go on, which Ctrl-C brings about at once; also at once if there are none.
    """
    if not processes.pause(lab.find(default_state_dir()).host(host).namespace, seconds, SystemClock()):
        note(f"nothing runs on host {host}")


@_fault.command(epilog=examples("ako lab fault kill 1"))
def kill(host: HostArgument) -> None:
    """Kill the processes of a host."""
    if not processes.kill_all([lab.find(default_state_dir()).host(host).namespace], SystemClock()):
        note(f"nothing runs on host {host}")


def _each(hosts: int, one: str, list_: str, option: str) -> list[str]:
    """A value for each host: those of a list, or the one that all have."""
    if not list_:
        return [one] * hosts
    if one:
        raise ConfigError(what=f"{option} and {option}s are both given", got=[one, list_], fix="leave one of them out")
    values = list_.split(",")
    if len(values) != hosts or "" in values:
        raise ConfigError(what=f"{option}s needs {hosts} values, one for each host", got=list_)
    return values


def _rate(text: str) -> float:
    """Bytes per second of a host's link."""
    rate, (least, most) = bytes_per_second(text), RATES
    if not least <= rate <= most:
        fix = f"say {bandwidth_text(least)} to {bandwidth_text(most)}"
        raise ConfigError(what="a host's link cannot have this rate", got=text, fix=fix)
    return rate


def _cores(text: str) -> float | None:
    """How many cores a host may use; None if nothing is said."""
    if not text:
        return None
    try:
        cores = float(text)
    except ValueError:
        raise ConfigError(what="not a number of cores", got=text, fix="write it like 0.5") from None
    least, most = CORES
    if not least <= cores <= most:
        what, fix = "a host cannot have this share of the CPU", f"say {least:g} to {most:g} cores"
        raise ConfigError(what, got=text, fix=fix)
    return cores


def _others(plan: LabPlan, host: int, other: int | None) -> Sequence[Station]:
    """The stations at the other end of a host's links: one, or all."""
    if other == host:
        raise ConfigError(what="a host has no link to itself", got=host, fix="name two different hosts")
    one = plan.host(host)
    return [station for station in plan.stations if station != one] if other is None else [plan.host(other)]


def _show(plan: LabPlan, jobs: Sequence[JobStatus], *, json: bool) -> None:
    stations = lab.status(plan)
    if json:
        measured = [measured_job(job) for job in jobs]
        print_json({"name": plan.name, "latency_s": plan.latency_s, "stations": stations, "jobs": measured})
        return
    print_table(
        ("HOST", "ADDRESS", "RATE", "CORES", "SENT", "RECEIVED", "CUT FROM", "LOSS", "PROCESSES"),
        [
            (
                each.name,
                each.address,
                None if each.rate is None else bandwidth_text(each.rate),
                "all" if each.cores is None else f"{each.cores:g}",
                megabytes(each.sent_nbytes),
                megabytes(each.received_nbytes),
                ", ".join(each.cut_from),
                "some" if each.lossy else None,
                len(each.processes) or None,
            )
            for each in stations
        ],
    )
    for job in jobs:
        print()
        show_job(job)
