"""Runs a comparison. Each run has a folder of its own, and the record in it is the memory of what has been done.

Invariant: a run's folder appears whole, when the run has ended; whatever happens in between, runs that ended are kept.
One whose identity has changed since is run again, and its folder kept until then.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ako_jobs.compare.comparison import Case, Comparison
from ako_jobs.compare.identity import Identity
from ako_jobs.jobs import Prepared, load_job, prepare
from ako_jobs.result_folder import empty_folder
from ako_jobs.run import MakeCluster, Result, execute, keep
from ako_jobs.simulate import check_takes_time, execute_simulation, prepare_simulation
from dataflow import JobEvent, JobSpec, JobState, LocalCluster, Profile, TaskKind, as_simulated
from dataflow.artifact_names import RECORD_FILE
from dataflow.errors import AkoError, ConfigError

COMPARISON_FILE = "comparison.json"
"""Says which comparison a folder is of; locked while somebody works in the folder."""

Record = Mapping[str, Any]
"""See `dataflow.observe.record.make_record`."""


@dataclass(frozen=True)
class Run:
    """A case with a seed."""

    case: Case
    seed: int

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.case.name}, seed {self.seed}"


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Args:
        run: the run.
        record: its record; None if it could not be started.
        reason: why it did not finish; empty if it did.
    """

    run: Run
    record: Record | None
    reason: str = ""


@dataclass(frozen=True)
class Outcomes:
    """What became of the runs of a comparison: those that ended, and whether Ctrl-C kept others from being run."""

    ended: tuple[Outcome, ...]
    interrupted: bool = False

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """Those that did not finish."""
        return tuple(outcome for outcome in self.ended if outcome.reason)


class Watcher(Protocol):
    """Is told how a comparison goes."""

    def outdated(self, runs: Sequence[Run]) -> None:
        """These are run again: they finished, but with other code or Ako than now, or their records have changed."""

    def begin(self, run: Run) -> None:
        """A run is prepared."""

    def start(self, epochs: float | None) -> None:
        """The run starts; `epochs` is how long it is at most, if that is known."""

    def event(self, event: JobEvent) -> None:
        """Something happened to the run."""

    def end(self, outcome: Outcome) -> None:
        """A run has ended, now or when the comparison was run before."""


def runs(comparison: Comparison) -> tuple[Run, ...]:
    """All runs, in order: every case with the first seed comes before any with the second."""
    cases = comparison.cases()
    return tuple(Run(case, seed) for seed in range(comparison.seeds) for case in cases)


def check_cases(comparison: Comparison) -> dict[str, tuple[str, ...]]:
    """Configure, build and check every case; nothing is started.

    Returns:
        Warnings by the name of the variant, each once.

    Raises:
        ConfigError: a case cannot be run; it is named.
    """
    warnings: dict[str, tuple[str, ...]] = dict.fromkeys(comparison.variants, ())
    seen: dict[tuple[str, str], Case] = {}
    for case in comparison.cases():
        try:
            prepared = prepare(load_job(case.job), case.settings, case.nodes)
            spec = prepared.spec
            if case.cluster is not None:
                model = case.cluster.model()
                as_simulated(spec, model)
                check_takes_time(prepared, model)
            elif spec.graph.tensor_scale != 1:
                what, fix = "only a simulation can count phantom tensors", "add --sim, or leave out phantom=true"
                raise ConfigError(what, fix=fix)
            _check_new(case, spec, seen)
            warnings[case.variant] = tuple(dict.fromkeys((*warnings[case.variant], *spec.warnings)))
        except AkoError as error:
            what = f"{case.name}: {error.what}"
            raise ConfigError(what, got=error.got, where=error.where, fix=error.fix) from error
    return warnings


def _check_new(case: Case, spec: JobSpec, seen: dict[tuple[str, str], Case]) -> None:
    """Refuse a case of a variant that is the same as an earlier one, written otherwise, such as lr=0.1 and lr=0.10."""
    cluster = None if case.cluster is None else case.cluster.model().model_dump(mode="json")
    meant = json.dumps([spec.config, case.nodes, cluster], sort_keys=True)
    before = seen.setdefault((case.variant, meant), case)
    if before is not case:
        what, fix = f"swept values are equal: it would be the same as {before.name}", "give each value once"
        raise ConfigError(what, fix=fix)


@contextmanager
def claim(out: Path, comparison: Comparison) -> Iterator[None]:
    """Make `out` the folder of a comparison, or find that it is, and keep others out of it inside the ``with`` block.

    Raises:
        ConfigError: it is another's, holds something else, cannot be written to, or somebody works in it.
    """
    path = out / COMPARISON_FILE
    if not path.is_file():
        empty_folder(out)
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise ConfigError(what=f"cannot write results there: {error.strerror}", got=str(path)) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            fix = "wait for its end, or name another folder"
            raise ConfigError(what="another `ako compare` works in the folder", got=str(out), fix=fix) from error
        file.seek(0)
        _check_same(file.read(), comparison, out)
        file.truncate(0)
        file.write(comparison.model_dump_json(indent=2) + "\n")
        file.flush()
        yield


def _check_same(text: str, comparison: Comparison, out: Path) -> None:
    """Refuse the folder of another comparison; one that was only just made has an empty text."""
    if not text:
        return
    try:
        before = Comparison.model_validate_json(text)
    except ValueError as error:
        what = "the folder's comparison cannot be read"
        raise ConfigError(what, got=str(out / COMPARISON_FILE), fix="name a new folder") from error
    if not before.same_runs(comparison):
        fix = "name a new folder; only seeds and target may change"
        raise ConfigError(what="the folder holds another comparison", got=str(out), fix=fix)


def run_comparison(
    comparison: Comparison, out: Path, watcher: Watcher, make_cluster: MakeCluster = LocalCluster
) -> Outcomes:
    """Run what has not been run before, and return what became of all.

    Runs that failed are run again, and so are those that finished with other code, or with another version of Ako, and
    those whose record is not as it was kept.
    A first Ctrl-C ends the run that it interrupts, and those that are left are not run.

    Args:
        comparison: what to run; it has been checked.
        out: its folder, which has been claimed.
        watcher: is told how it goes.
        make_cluster: makes the processes of a run that is not simulated and has no master.
    """
    ended: list[Outcome] = []
    profiles = _Profiles()
    try:
        # Before the first run: a job file that is edited from now on is not what this process has imported.
        planned = [_Planned.of(run, out) for run in runs(comparison)]
        if outdated := [each.run for each in planned if each.outdated]:
            watcher.outdated(outdated)
        for each in planned:
            run = each.run
            if each.before is not None and not each.outdated:
                outcome = Outcome(run, each.before)
            else:
                outcome = _perform(
                    each, partial(execute, master=comparison.master, cluster=make_cluster), profiles, watcher
                )
            if outcome.record is not None:
                profiles.learn(run.case, outcome.record)
            ended.append(outcome)
            watcher.end(outcome)
    except KeyboardInterrupt:
        return Outcomes(tuple(ended), interrupted=True)
    return Outcomes(tuple(ended))


@dataclass(frozen=True)
class _Planned:
    """A run, its folder, what it would be if it was run now, and its record if it has finished before."""

    run: Run
    folder: Path
    identity: Identity | None
    before: Record | None

    @classmethod
    def of(cls, run: Run, out: Path) -> _Planned:
        folder = out / "runs" / run.case.folder / f"seed-{run.seed}"
        try:
            identity = Identity.of(prepare(load_job(run.case.job), _settings(run), run.case.nodes))
        except AkoError:
            identity = None  # and running it will fail, and say why
        return cls(run, folder, identity, _finished(folder))

    @property
    def outdated(self) -> bool:
        """Whether it has finished as another than it would be now, or its record is not as it was kept."""
        if self.before is None:
            return False
        return self.identity is None or Identity.read(self.folder) != self.identity.with_record(self.folder)


@dataclass
class _Profiles:
    """How long tasks take, known from one simulation of a case for all others that have the same tasks."""

    known: dict[str, Profile] = field(default_factory=dict)

    def of(self, case: Case) -> Profile | None:
        return self.known.get(self._key(case))

    def learn(self, case: Case, record: Record) -> None:
        if case.cluster is not None:
            assumed = record["simulation"]
            means = {TaskKind(chain, role, first): mean for chain, role, first, mean in assumed["task_s"]}
            costs = {key: assumed.get(key, 0.0) for key in Profile.COSTS}
            if means:  # there are none of a job that failed while they were measured
                self.known.setdefault(self._key(case), Profile(means, **costs))

    def _key(self, case: Case) -> str:
        """Cases with equal ones have equal tasks: the network and declared faults make no difference."""
        cluster = case.cluster and [case.cluster.compute, case.cluster.step_time, case.cluster.tasks]
        return json.dumps([case.job, dict(case.settings), case.nodes, cluster], sort_keys=True)


def _finished(folder: Path) -> Record | None:
    """The record of a run that has finished, if there is one."""
    try:
        record: Record = json.loads((folder / RECORD_FILE).read_text())
        return record if record["state"] == JobState.FINISHED else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _perform(planned: _Planned, execute_job: Callable[..., Result], profiles: _Profiles, watcher: Watcher) -> Outcome:
    """Run it and keep what it makes.

    Raises:
        KeyboardInterrupt: Ctrl-C ended it; nothing of it is kept.
    """
    run, identity = planned.run, planned.identity
    try:
        watcher.begin(run)
        prepared, go = _ready(run, execute_job, profiles)
        watcher.start(prepared.epochs)
        result = go(on_event=watcher.event)
    except AkoError as error:
        return Outcome(run, None, str(error))
    if result.interrupted:
        raise KeyboardInterrupt
    with _arriving(planned.folder) as unfinished:
        keep(result, prepared, unfinished)
        if identity is not None:
            identity.write(unfinished)
    finished = result.state is JobState.FINISHED
    return Outcome(run, result.record, "" if finished else result.reason or f"it was {result.state.lower()}")


def _ready(run: Run, execute_job: Callable[..., Result], profiles: _Profiles) -> tuple[Prepared, Callable[..., Result]]:
    case = run.case
    job, settings = load_job(case.job), _settings(run)
    if case.cluster is None:
        prepared = prepare(job, settings, case.nodes)
        return prepared, partial(execute_job, prepared)
    simulation = prepare_simulation(job, settings, case.nodes, case.cluster.model(), profile=profiles.of(case))
    return simulation.prepared, partial(execute_simulation, simulation)


def _settings(run: Run) -> dict[str, str]:
    return {**run.case.settings, "seed": str(run.seed)}


@contextmanager
def _arriving(folder: Path) -> Iterator[Path]:
    """A new folder that takes the name of `folder`, and its place, once it is filled."""
    unfinished = folder.with_name(f".{folder.name}")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir(parents=True)
    yield unfinished
    if folder.exists():
        shutil.rmtree(folder)
    unfinished.rename(folder)
