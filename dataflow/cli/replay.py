"""``ako replay``."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.progress import Progress

from ako_jobs.built_in import BUILT_IN
from ako_jobs.jobs import load_job, prepare
from dataflow.artifact_names import RECORD_FILE, RECORD_FOLDER
from dataflow.cli.common import JsonFlag, examples, note, print_json, verbs
from dataflow.engine.recording import EVENT_NBYTES, MAX_CHUNK_NBYTES, MAX_PLAN_NBYTES, PLAN_FILE
from dataflow.errors import DataError
from dataflow.observe.record import installed_versions
from dataflow.plan.compile import compile_graph
from dataflow.plan.physical import PhysicalPlan
from dataflow.runtime.store import MAX_ARTIFACT_NBYTES
from dataflow.sim.record import recorded_plan
from dataflow.sim.replay import Difference, Replayed, compare, replay

MAX_RECORD_NBYTES = 256 << 20
"""Most bytes of a record that is read: it has an entry per link, and 1,500 nodes that all talk have two million."""

app = verbs()


class _Record(BaseModel):
    """What of a run's record a replay needs; see `dataflow.observe.record.make_record`."""

    name: str
    config: dict[str, Any]
    state: str
    reports: list[dict[str, Any]]
    versions: dict[str, str]


@app.command(
    name="replay",
    epilog=examples(
        "ako run ako --record --out results",
        "ako replay results",
        "ako replay results --job my_job.py",
    ),
)
def replay_run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="What `ako run --record --out DIR` has kept.")],
    job: Annotated[
        str,
        typer.Option("--job", metavar="JOB", help="The job, if it has code of its own: my_job.py. Its code is run."),
    ] = "",
    json: JsonFlag = False,
) -> None:
    """Make a recorded run again in this process, and compare every message, the model and other files, the reports.

    The plan is built from the job again, and compared with the one recorded: no code is run that only RUN names.

    A record that breaks off, such as that of a node that was killed, is replayed as far as it goes. Exit code 0: all
    is identical; 1: something differs, and the first difference is shown; 2: the folder holds no record, or not all of
    a run that finished, or the job is another one than was recorded.
    """
    record = _record_of(folder)
    read = partial(_read, folder)
    plan = _plan_again(record, recorded_plan(read), job)
    _warn_of_versions(record)
    total = sum(path.stat().st_size for path in (folder / RECORD_FOLDER).glob("*.bin")) // EVENT_NBYTES
    with _progress(total) as on_progress:
        replayed = replay(plan, read, on_progress)
    difference = compare(replayed, read, record.reports)
    if json:
        print_json(_as_json(replayed, difference))
    else:
        print("\n".join(_lines(replayed, difference)))
    if difference is not None:
        raise typer.Exit(1)
    if record.state == "FINISHED" and not replayed.complete:
        what, fix = "the run finished, and events of it are missing here", "replay the folder as it was kept"
        raise DataError(what, where=str(folder), fix=fix)


def _record_of(folder: Path) -> _Record:
    """The run's own record."""
    where, fix = str(folder / RECORD_FILE), "name what `ako run --record --out DIR` has kept"
    data = _read(folder, RECORD_FILE)
    if data is None:
        raise DataError(what=f"the folder does not hold a run: it has no {RECORD_FILE}", where=where, fix=fix)
    try:
        return _Record.model_validate(json_text.loads(data))
    except (ValueError, RecursionError) as error:
        what = "the folder does not hold a run: its record cannot be read"
        raise DataError(what, got=str(error), where=where, fix=fix) from error


def _plan_again(record: _Record, recorded: PhysicalPlan, job: str) -> PhysicalPlan:
    """The plan of a run, made again: of a record only numbers, names of nodes and settings are used, never code.

    Raises:
        DataError: the job is not built in, and nobody has named its code.
        AkoError: as for `load_job`, `prepare` and `compile_graph`.
    """
    if not job and record.name not in BUILT_IN:
        what = "the run is one of a job that is not built in"
        fix = "name the job whose code it is, as in --job my_job.py"
        raise DataError(what, got=record.name, fix=fix)
    found = load_job(job or record.name)
    # Computed fields are in a record, and cannot be set.
    settings = {key: value for key, value in record.config.items() if key in found.config.model_fields}
    plan = compile_graph(
        prepare(found, settings, len(recorded.nodes)).graph,
        len(recorded.nodes),
        seed=recorded.seed,
        names=tuple(node.name for node in recorded.nodes),
    )
    nodes = (
        node.model_copy(update={"compute_tasks": was.compute_tasks})
        for node, was in zip(plan.nodes, recorded.nodes, strict=True)
    )
    return plan.model_copy(update={"nodes": tuple(nodes)})


def _warn_of_versions(record: _Record) -> None:
    now = installed_versions()
    other = {name: was for name, was in record.versions.items() if now.get(name) != was}
    if other:
        changed = ", ".join(f"{name} {was} then, {now.get(name, 'none')} now" for name, was in sorted(other.items()))
        note(f"other versions may compute other values: {changed}")


def _read(folder: Path, name: str) -> bytes | None:
    """The content of a file of the run; None if there is none."""
    path, most = folder / name, _most_nbytes(name)
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):
            what, fix = "a file of the run is no plain file", "replay the folder as it was kept"
            raise DataError(what, where=str(path), fix=fix)
        if status.st_size > most:
            what = f"a file of the run is too large: {name} has at most {most:,} bytes"
            raise DataError(what, got=status.st_size, where=str(path))
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(what=f"a file of the run cannot be read: {error}", where=str(path)) from error


def _most_nbytes(name: str) -> int:
    """Most bytes that a file of a run has."""
    if name.startswith(f"{RECORD_FOLDER}/"):
        return MAX_PLAN_NBYTES if name == PLAN_FILE else MAX_CHUNK_NBYTES
    return MAX_RECORD_NBYTES if name == RECORD_FILE else MAX_ARTIFACT_NBYTES


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, if that is a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("replaying", total=total)
        yield lambda events: progress.update(bar, completed=events)


def _lines(replayed: Replayed, difference: Difference | None) -> Iterator[str]:
    nodes = replayed.plan.nodes
    events, files = sum(replayed.events), len(replayed.artifacts)
    if difference is None:
        far = "" if replayed.complete else " as far as the record goes"
        things = (_count(files, "file"), _count(len(replayed.reports), "report"))
        yield f"identical{far}: {_count(events, 'event')} of {_count(len(nodes), 'node')}, {', '.join(things)}"
    else:
        where = "" if difference.node is None else f"{nodes[difference.node].name}, event {difference.event}: "
        yield f"different: {where}{difference.what}"
    for node, error in sorted(replayed.failures.items()):
        yield f"{nodes[node].name} failed: {error}"
    for node in sorted(replayed.broken):
        yield f"the record of {nodes[node].name} breaks off after {replayed.events[node]:,} events"
    if difference is None:
        for node, other in sorted(replayed.waiting.items()):
            done, name = f"{replayed.events[node]:,} events", nodes[other].name
            yield f"{nodes[node].name} was given {done}; the next follows from what {name} did later"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def _as_json(replayed: Replayed, difference: Difference | None) -> dict[str, Any]:
    return {
        "identical": difference is None,
        "complete": replayed.complete,
        "difference": difference,
        "nodes": [
            {
                "node": node.index,
                "name": node.name,
                "events": replayed.events[node.index],
                "broken": node.index in replayed.broken,
                "waits_for": replayed.waiting.get(node.index),
                "failure": str(replayed.failures[node.index]) if node.index in replayed.failures else None,
            }
            for node in replayed.plan.nodes
        ],
        "artifacts": sorted(replayed.artifacts),
        "reports": len(replayed.reports),
    }
