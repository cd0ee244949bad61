"""``ako replay``."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from ako_jobs.jobs import load_job
from dataflow.cli.common import JsonFlag, examples, note, print_json, verbs
from dataflow.engine.recording import EVENT_NBYTES, FOLDER
from dataflow.errors import DataError, PlanError
from dataflow.observe.record import installed_versions
from dataflow.runtime.store import MAX_ARTIFACT_NBYTES
from dataflow.sim.replay import Difference, Replayed, compare, replay

app = verbs()


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

    A record that breaks off, such as that of a node that was killed, is replayed as far as it goes. Exit code 0: all
    is identical; 1: something differs, and the first difference is shown; 2: the folder holds no record.
    """
    record = _record_of(folder)
    if job:
        load_job(job)  # puts its folder where its modules are found
    _warn_of_versions(record)

    def read(name: str) -> bytes | None:
        return _read(folder, name)

    total = sum(path.stat().st_size for path in (folder / FOLDER).glob("*.bin")) // EVENT_NBYTES
    with _progress(total) as on_progress, _code_named(job):
        replayed = replay(read, on_progress)
    difference = compare(replayed, read, record["reports"])
    if json:
        print_json(_as_json(replayed, difference))
    else:
        print("\n".join(_lines(replayed, difference)))
    if difference is not None:
        raise typer.Exit(1)


def _record_of(folder: Path) -> Any:
    """The run's own record."""
    path = folder / "record.json"
    try:
        record = json_text.loads(path.read_text())
        return {"reports": [dict(report) for report in record["reports"]], "versions": dict(record["versions"])}
    except (OSError, ValueError, TypeError, KeyError) as error:
        what = f"the folder does not hold a run: {error!r}"
        raise DataError(what, where=str(path), fix="name what `ako run --record --out DIR` has kept") from error


def _warn_of_versions(record: Any) -> None:
    now = installed_versions()
    other = {name: was for name, was in record["versions"].items() if now.get(name) != was}
    if other:
        changed = ", ".join(f"{name} {was} then, {now.get(name, 'none')} now" for name, was in sorted(other.items()))
        note(f"other versions may compute other values: {changed}")


def _read(folder: Path, name: str) -> bytes | None:
    path = folder / name
    try:
        if path.stat().st_size > MAX_ARTIFACT_NBYTES:
            raise DataError(what="a file of the run is too large", got=path.stat().st_size, where=str(path))
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(what=f"a file of the run cannot be read: {error}", where=str(path)) from error


@contextmanager
def _code_named(job: str) -> Iterator[None]:
    """Say how to name code that is not found."""
    try:
        yield
    except PlanError as error:
        if job:
            raise
        raise PlanError(error.what, fix="name the job whose code it is, as in --job my_job.py") from error


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
