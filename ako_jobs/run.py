"""Run a job from Python: what ``ako run`` does, as a call."""

from __future__ import annotations

import csv
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import JsonValue

from ako_jobs.jobs import Job, Prepared, load_job, prepare
from ako_jobs.predict import CONFIG_FILE, ModelInput
from ako_jobs.result_folder import held_folder
from dataflow import (
    Client,
    JobEvent,
    JobState,
    LocalCluster,
    Series,
    default_state_dir,
    find_credentials,
    installed_versions,
    make_record,
)
from dataflow.artifact_names import RECORD_FILE, check_artifact_name
from dataflow.errors import JobFailedError

OnEvent = Callable[[JobEvent], None]
"""Called with each event of a job as it comes."""

OnSubmitted = Callable[[str], None]
"""Called with the id that the master has given a job."""


class MakeCluster(Protocol):
    """Makes clusters."""

    def __call__(self, nodes: int, *, ahead: Sequence[str] = ()) -> AbstractContextManager[LocalCluster]:
        """One of that many nodes, which lives as long as a ``with`` block; `ahead`: see `LocalCluster`."""


@dataclass(frozen=True)
class Result:
    """What became of a job.

    Args:
        job: its id at the master.
        state: FINISHED, FAILED or CANCELLED.
        reason: what made it fail.
        stopped_by: what made it stop: target, patience, time, epochs or cancel.
        record: see `dataflow.observe.record.make_record`.
        artifacts: the files its operators have made, by name; ``model.safetensors`` among them. Those in ``events/``
            are the record of a run that can be replayed.
        log: what its processes printed.
        interrupted: Ctrl-C cancelled it.
    """

    job: str
    state: JobState
    reason: str
    stopped_by: str
    record: dict[str, JsonValue]
    artifacts: dict[str, bytes]
    log: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def reports(self) -> list[dict[str, Any]]:
        """The messages of reported ports, such as validations, oldest first."""
        found: Any = self.record["reports"]
        return list(found)


class Heard:
    """What was heard of a job while it ran: its events, and how it went over time.

    Args:
        on_event: called with each event too.
    """

    def __init__(self, on_event: OnEvent | None) -> None:
        self.events: list[JobEvent] = []
        self.series = Series()
        self._on_event = on_event

    def handle(self, event: JobEvent) -> None:
        """Take in an event. Statistics pass by; the newest of each node are asked for at the end."""
        if event.statistics is None:
            self.events.append(event)
            if event.state == JobState.DEPLOYING:  # of a job that begins again, whose nodes count from 0
                self.series.newest.begin_again()
        else:
            self.series.add(event.elapsed_s, event.statistics)
        if self._on_event is not None:
            self._on_event(event)


def run(
    job: str | Job,
    settings: Mapping[str, Any] | None = None,
    *,
    nodes: int = 4,
    out: str | Path | None = None,
    master: str = "",
    record: bool = False,
    on_event: OnEvent | None = None,
) -> Result:
    """Run a job and return when it has ended.

    Args:
        job: what `load_job` takes, or a `Job`.
        settings: values by key.
        nodes: how many nodes it runs on.
        out: folder for what it makes; see `keep`.
        master: ``host:port`` of a running master; if empty, processes are started here for this job alone.
        record: let the run be replayed from `out`; see `dataflow.sim.replay`.
        on_event: called with each event.

    A first Ctrl-C cancels the job, and what it made until then is returned; a second one raises `KeyboardInterrupt`.

    Raises:
        AkoError: the job could not be started. One that fails later is returned, with state FAILED.
    """
    prepared = prepare(load_job(job) if isinstance(job, str) else job, settings or {}, nodes)
    return execute(prepared.recorded() if record else prepared, out=out, master=master, on_event=on_event)


def execute(
    prepared: Prepared,
    *,
    out: str | Path | None = None,
    master: str = "",
    cluster: MakeCluster = LocalCluster,
    on_event: OnEvent | None = None,
    on_submitted: OnSubmitted | None = None,
) -> Result:
    """Run a prepared job; arguments and errors as for `run`.

    `cluster` makes the processes that `run` starts, and `on_submitted` is called before the first event.
    """
    with held_folder(out) as folder:
        with _client(master, cluster, prepared) as client:
            result = _run(client, prepared, on_event, on_submitted)
        if folder is not None:
            keep(result, prepared, folder)
        return result


def keep(result: Result, prepared: Prepared, folder: Path) -> None:
    """Write a run's files.

    These are ``record.json``, ``curves.csv`` (a row per validation), ``config.json`` (with which a trained model is
    loaded), ``job.log`` (what the processes printed) and the artifacts of operators, which cannot take these names.

    Raises:
        JobFailedError: a file cannot be written.
    """
    try:
        _write(result, prepared, folder)
    except OSError as error:
        what = f"the run has ended, but its results cannot be written: {error}"
        raise JobFailedError(what, got=str(folder), fix="make room there, or name a folder on another disk") from error


def _write(result: Result, prepared: Prepared, folder: Path) -> None:
    for name, data in result.artifacts.items():
        check_artifact_name(name)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    spec = prepared.spec
    model_input = ModelInput.of(prepared.graph)
    config = {
        "name": spec.name,
        "nodes": spec.nodes,
        "seed": spec.seed,
        "config": spec.config,
        "input": model_input and model_input.model_dump(mode="json"),
    }
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    (folder / RECORD_FILE).write_text(record_text(result))
    (folder / "job.log").write_text("".join(f"{line}\n" for line in result.log))
    columns = dict.fromkeys(name for report in result.reports for name in ("time_s", "node", "port", *report))
    with (folder / "curves.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, list(columns))
        rows.writeheader()
        rows.writerows(result.reports)


def record_text(result: Result) -> str:
    """The record as the text of a JSON file."""
    return json.dumps(result.record, indent=2, allow_nan=False) + "\n"


@contextmanager
def _client(master: str, make_cluster: MakeCluster, prepared: Prepared) -> Iterator[Client]:
    """A client of the master at that address, or of one that lives as long as the ``with`` block."""
    if master:
        with Client(master, *find_credentials(master, default_state_dir())) as client:
            yield client
    else:
        with make_cluster(prepared.spec.nodes, ahead=prepared.our_modules) as cluster:
            yield cluster.client


def _run(client: Client, prepared: Prepared, on_event: OnEvent | None, on_submitted: OnSubmitted | None) -> Result:
    heard = Heard(on_event)
    operation = secrets.token_hex(16)
    try:
        job = client.submit(prepared.spec, prepared.bundle, operation)
    except KeyboardInterrupt:
        # The master may have taken it already: with the same operation id this is the same job, not another.
        client.cancel(client.submit(prepared.spec, prepared.bundle, operation))
        raise

    if on_submitted is not None:
        on_submitted(job)
    interrupted = _follow(client, job, heard.handle)
    status = client.job(job)
    heard.series.close()
    return Result(
        job=job,
        state=status.state,
        reason=status.reason,
        stopped_by=status.stopped_by,
        record=make_record(
            prepared.spec,
            heard.events,
            status.statistics,
            installed_versions(),
            node_names=status.node_names,
            earlier=heard.series.newest.earlier(status.statistics),
            last_lines=status.last_lines,
            series=heard.series.points,
        ),
        artifacts=dict(client.artifacts(job)),
        log=tuple(f"{line.node}: {line.text}" for line in client.logs(job)),
        interrupted=interrupted,
    )


def _follow(client: Client, job: str, handle: OnEvent) -> bool:
    """Handle a job's events until it has ended; whether Ctrl-C cancelled it."""
    since, interrupted = 0, False
    while True:
        try:
            for event in client.watch(job, since):
                since = event.index + (event.statistics is None)
                handle(event)
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            client.cancel(job)
        else:
            return interrupted
