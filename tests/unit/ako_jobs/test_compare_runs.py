from __future__ import annotations

import errno
import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compare_records import Watch, comparison, files

from ako_jobs import ako
from ako_jobs.compare import identity
from ako_jobs.compare import runs as compare_runs
from ako_jobs.compare.comparison import Comparison
from ako_jobs.compare.runs import Outcomes, check_cases, claim, run_comparison
from dataflow import Profile
from dataflow.errors import ConfigError
from dataflow.graph.logical import LogicalGraph

REAL = {"epochs": 0.1, "warm_start": 0}
QUICK = {"phantom": True, "epochs": 0.1, "warm_start": 0}
CLUSTER = {"step_time": "1ms"}


@pytest.fixture(autouse=True)
def same_imports(tmp_path: Path) -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def perform(compared: Comparison, out: Path, watch: Watch) -> Outcomes:
    with claim(out, compared):
        return run_comparison(compared, out, watch)


def quick(**said: Any) -> Comparison:
    """Simulations that learn nothing, of some ten steps on two nodes."""
    return comparison(**{"settings": QUICK, "cluster": CLUSTER, "nodes": 2, "seeds": 2, **said})


def test_run_comparison_interrupted_goes_on_with_the_runs_that_are_missing(tmp_path: Path) -> None:
    compared = quick()

    def third_is_interrupted(run: Any) -> None:
        if run.name == "a, seed 1":
            raise KeyboardInterrupt

    first = Watch(on_begin=third_is_interrupted)
    ended = perform(compared, tmp_path / "out", first)
    assert ended.interrupted
    assert first.begun == ["a, seed 0", "b, seed 0"]
    assert first.epochs == [0.1, 0.1]
    kept = files(tmp_path / "out")
    (tmp_path / "out" / "runs" / "01-a" / ".seed-1").mkdir()  # as if the machine had stopped while it was written

    second = Watch()
    ended = perform(compared, tmp_path / "out", second)
    assert not ended.interrupted
    assert not ended.failed
    assert second.begun == ["a, seed 1", "b, seed 1"]
    assert [outcome.run.name for outcome in second.ended] == ["a, seed 0", "b, seed 0", "a, seed 1", "b, seed 1"]
    everything = files(tmp_path / "out")
    assert {name: everything[name] for name in kept} == kept
    assert sorted(path.name for path in (tmp_path / "out" / "runs" / "01-a").iterdir()) == ["seed-0", "seed-1"]


def test_run_comparison_ctrl_c_in_a_run_keeps_nothing_of_it(tmp_path: Path) -> None:
    compared = quick(seeds=1)

    def interrupt(event: Any) -> None:
        if event.state == "RUNNING":
            signal.raise_signal(signal.SIGINT)

    ended = perform(compared, tmp_path / "out", Watch(on_event=interrupt))
    assert ended.interrupted
    assert ended.ended == ()
    assert not (tmp_path / "out" / "runs").exists()


def test_run_comparison_what_fails_does_not_keep_others_from_running_and_is_run_again(tmp_path: Path) -> None:
    """Node 1 fails in the midst of the job, or long after it."""
    sweep, needs_both = {"fault": ["fail:1@0.005", "fail:1@1000"]}, {**QUICK, "min_nodes": 2}
    compared = quick(seeds=1, settings=needs_both, sweep=sweep, variants={"a": {"job": "ako"}})
    for _ in range(2):
        watch = Watch()
        ended = perform(compared, tmp_path / "out", watch)
        assert watch.begun[0] == "a fault=fail:1@0.005, seed 0"
        (failed,) = ended.failed
        assert "it failed at second 0.005, as declared" in failed.reason
        assert len(ended.ended) == 2
    assert len(watch.begun) == 1
    record = json.loads((tmp_path / "out" / "runs" / "01-a-fault-fail-1-0-005" / "seed-0" / "record.json").read_text())
    assert record["state"] == "FAILED"


@pytest.mark.parametrize("text", ["{}", "[]", "{"])
def test_run_comparison_record_that_is_none_is_made_again(tmp_path: Path, text: str) -> None:
    compared = quick(seeds=1, settings={**QUICK, "epochs": 1}, variants={"a": {"job": "ako"}})
    claim(tmp_path / "out", compared)
    (first,) = run_comparison(compared, tmp_path / "out", Watch()).ended
    (tmp_path / "out" / "runs" / "01-a" / "seed-0" / "record.json").write_text(text)
    (again,) = run_comparison(compared, tmp_path / "out", Watch()).ended
    assert again.record == first.record


def test_run_comparison_record_that_was_edited_is_made_again(tmp_path: Path) -> None:
    """Whatever was edited: here, what the table needs."""
    compared = quick(seeds=1)
    perform(compared, tmp_path / "out", Watch())
    kept = files(tmp_path / "out")
    path = tmp_path / "out" / "runs" / "01-a" / "seed-0" / "record.json"
    record = json.loads(path.read_text())
    del record["reports"]
    path.write_text(json.dumps(record))
    again = Watch()
    perform(compared, tmp_path / "out", again)
    assert again.again == again.begun == ["a, seed 0"]
    assert files(tmp_path / "out") == kept


def test_run_comparison_what_cannot_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AKO_TOKEN", "none that a master knows")
    compared = quick(seeds=1, settings={}, cluster=None, master="127.0.0.1:1", variants={"a": {"job": "ako"}})
    (outcome,) = perform(compared, tmp_path / "out", Watch()).ended
    assert outcome.record is None
    assert "127.0.0.1:1" in outcome.reason


def test_run_comparison_tasks_are_measured_once_for_all_seeds_and_bandwidths(tmp_path: Path) -> None:
    """Also when it goes on with seeds that are missing; on other nodes they are measured again."""
    said: dict[str, Any] = {"variants": {"a": {"job": "ako"}}, "cluster": {}, "settings": REAL}
    said["sweep"] = {"bandwidth": ["10mbit", "1gbit"]}
    for seeds in (1, 2):
        ended = perform(quick(seeds=seeds, **said), tmp_path / "out", Watch()).ended
    first, *others = [outcome.record["simulation"] for outcome in ended if outcome.record]
    assert len(others) == 3
    assert first["task_s"]
    assert first["engine_s"] > 0
    assert first["message_s"] > 0
    measured = ("task_s", *Profile.COSTS)
    assert all([each[key] for key in measured] == [first[key] for key in measured] for each in others)

    said["sweep"] = {"nodes": ["2", "3"]}
    two, three = perform(quick(seeds=1, **said), tmp_path / "nodes", Watch()).ended
    assert two.record is not None
    assert three.record is not None
    assert two.record["simulation"]["task_s"] != three.record["simulation"]["task_s"]


FAILS_WITH_SEED_0 = """
from ako_jobs import ako
from dataflow import Emissions, In, LogicalGraph, NodeContext, Operator, Out
from operators.messages import Batch


class Fails(Operator):
    batches = In(Batch)
    same = Out(Batch)

    def process(self, batch: Batch, node: NodeContext) -> Emissions:
        if node.seed == 0:
            raise ValueError("boom")
        yield self.same(batch)


Config = ako.Config


def build(config: Config) -> LogicalGraph:
    return ako.build(config).insert_after("source", Fails())
"""


def test_run_comparison_tasks_that_could_not_be_measured_as_one_seed_fails_are_for_the_next(tmp_path: Path) -> None:
    job = tmp_path / "fails_job.py"
    job.write_text(FAILS_WITH_SEED_0)
    compared = quick(variants={"a": {"job": str(job)}}, cluster={}, settings=REAL)
    failed, measured = perform(compared, tmp_path / "out", Watch()).ended
    assert failed.record is not None
    assert "operator 'fails' raised ValueError: boom" in failed.reason
    assert failed.record["simulation"]["task_s"] == []
    assert measured.record is not None
    assert measured.record["state"] == "FINISHED"
    assert measured.record["simulation"]["task_s"]


def test_run_comparison_record_of_a_short_run_tells_how_it_went(tmp_path: Path) -> None:
    """180 steps of 1 ms on two nodes at once: statistics each 16 ms make six points and one at the end."""
    compared = quick(seeds=1, settings={**QUICK, "epochs": 1, "holdout": 0}, variants={"a": {"job": "ako"}})
    (outcome,) = perform(compared, tmp_path / "out", Watch()).ended
    assert outcome.record is not None
    series = outcome.record["series"]
    assert [point["time_s"] for point in series[:-1]] == pytest.approx(
        [0.016 * number for number in range(1, len(series))]
    )
    assert 6 <= len(series) <= 8
    assert series[-1]["gradients"] == outcome.record["totals"]["gradients"]
    assert series[-1]["sent_nbytes"] == outcome.record["totals"]["sent_nbytes"]


def test_run_comparison_same_seed_gives_the_same_record(tmp_path: Path) -> None:
    compared = quick(seeds=1, settings={"epochs": 0.1})
    records = []
    for _ in range(2):
        records.append([outcome.record for outcome in perform(compared, tmp_path / "out", Watch()).ended])
        shutil.rmtree(tmp_path / "out")
    assert records[0] == records[1]


JOB = """\
from ako_jobs import ako


class Config(ako.Config):
    pass


def build(config: Config):
    return ako.build(config)
"""


def test_run_comparison_job_file_edited_runs_its_runs_again_and_no_others(tmp_path: Path) -> None:
    """A comment will do: nobody can tell what a change of the code changes."""
    job, out = tmp_path / "mine.py", tmp_path / "out"
    job.write_text(JOB)
    compared = quick(variants={"mine": {"job": str(job)}, "b": {"job": "all_to_all"}})
    perform(compared, out, Watch())
    kept = files(out)

    job.write_text(JOB + "# better\n")
    again = Watch()
    ended = perform(compared, out, again)
    assert again.again == again.begun == ["mine, seed 0", "mine, seed 1"]
    assert len(ended.ended) == 4
    assert not ended.failed
    changed = {name for name, data in files(out).items() if kept[name] != data}
    assert {f"runs/01-mine/seed-{seed}/identity.json" for seed in (0, 1)} <= changed
    assert not [name for name in changed if name.startswith("runs/02-b")]

    third = Watch()
    perform(compared, out, third)
    assert third.again == third.begun == []


def test_run_comparison_job_that_builds_another_graph_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an installed module does that has been replaced: there is no code bundle of it."""
    compared = quick(seeds=1, variants={"a": {"job": "ako"}})
    perform(compared, tmp_path / "out", Watch())
    before = ako.build

    def build(config: ako.Config) -> LogicalGraph:
        return before(config).model_copy(update={"name": "better"})

    monkeypatch.setattr(ako, "build", build)
    again = Watch()
    perform(compared, tmp_path / "out", again)
    assert again.again == ["a, seed 0"]


def test_run_comparison_of_another_version_of_ako_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = quick(seeds=1)
    perform(compared, tmp_path / "out", Watch())
    monkeypatch.setattr(identity, "installed_versions", lambda: {"ako-dataflow": "99.0"})
    again = Watch()
    perform(compared, tmp_path / "out", again)
    assert again.again == again.begun == ["a, seed 0", "b, seed 0"]
    (tmp_path / "out" / "runs" / "01-a" / "seed-0" / "identity.json").unlink()
    unknown = Watch()
    perform(compared, tmp_path / "out", unknown)
    assert unknown.begun == ["a, seed 0"]


def test_run_comparison_that_cannot_keep_a_run_again_keeps_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = quick(seeds=1, variants={"a": {"job": "ako"}})
    perform(compared, tmp_path / "out", Watch())
    kept = files(tmp_path / "out")

    def keep(_result: object, _prepared: object, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(identity, "installed_versions", lambda: {"ako-dataflow": "99.0"})
    monkeypatch.setattr(compare_runs, "keep", keep)
    with pytest.raises(OSError, match="No space left"):
        perform(compared, tmp_path / "out", Watch())
    assert kept.items() <= files(tmp_path / "out").items()


def test_run_comparison_of_measured_times_that_finished_is_not_run_again(tmp_path: Path) -> None:
    """Ako is told what was measured, which differs from one time to the next: it is no part of what a run is."""
    compared = quick(seeds=1, cluster={}, settings=REAL)
    perform(compared, tmp_path / "out", Watch())
    again = Watch()
    perform(compared, tmp_path / "out", again)
    assert again.again == again.begun == []


def test_claim_folder_of_another_comparison_is_refused(tmp_path: Path) -> None:
    def claimed(out: Path, compared: Comparison) -> None:
        with claim(out, compared):
            pass

    claimed(tmp_path / "out", quick())
    claimed(tmp_path / "out", quick(seeds=5, target=0.5))
    with pytest.raises(ConfigError, match="the folder holds another comparison"):
        claimed(tmp_path / "out", quick(nodes=3))
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="the folder for the results is not empty"):
        claimed(tmp_path, quick())
    (tmp_path / "out" / "comparison.json").write_text("{")
    with pytest.raises(ConfigError, match="the folder's comparison cannot be read"):
        claimed(tmp_path / "out", quick())


def test_claim_folder_in_which_somebody_works_is_refused_until_they_have_ended(tmp_path: Path) -> None:
    with (
        claim(tmp_path / "out", quick()),
        pytest.raises(ConfigError, match="another `ako compare` works in the folder"),
        claim(tmp_path / "out", quick()),
    ):
        pass
    with claim(tmp_path / "out", quick(seeds=3)):
        said = (tmp_path / "out" / "comparison.json").read_text()
    assert Comparison.model_validate_json(said) == quick(seeds=3)


def test_check_cases_names_the_case_that_cannot_be_run() -> None:
    with pytest.raises(ConfigError, match=r"^a nodes=1 lr=no: lr: must be a positive number \(got no\)"):
        check_cases(quick(sweep={"nodes": [1], "lr": ["no"]}))
    with pytest.raises(ConfigError, match=r"^b speed=7=2: a speed is given for a node that does not exist"):
        check_cases(quick(variants={"b": {"job": "ako"}}, sweep={"speed": ["1=2", "7=2"]}))


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [("lr", "0.1", "0.10"), ("bandwidth", "100mbit", "0.1gbit"), ("nodes", "2", "02"), ("step_time", "1ms", "1000us")],
)
def test_check_cases_swept_values_that_are_equal_are_refused(key: str, one: str, other: str) -> None:
    with pytest.raises(ConfigError, match=rf"^a {key}={other}: .* the same as a {key}={one}; give each value once"):
        check_cases(quick(sweep={key: [one, other]}))
    check_cases(quick(variants={"a": {"job": "ako"}, "b": {"job": "ako"}}, sweep={key: [one]}))


def test_check_cases_phantoms_on_real_nodes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^a: only a simulation can count phantom tensors; add --sim"):
        check_cases(quick(cluster=None))


def test_check_cases_tells_each_warning_once_for_a_variant() -> None:
    found = check_cases(quick(sweep={"bandwidth": ["1mbit", "1gbit"]}, settings={**QUICK, "lr": 0.5}))
    said = "effective learning rate: 2 workers x lr 0.5 = 1 per round (updates add up)"
    assert found == {"a": (said,), "b": (said,)}


NUMBERS = """\
from ako_jobs.config import TrainingConfig
from dataflow import Emissions, LogicalGraph, Message, Operator, Out, Tick


class Numbers(Operator):
    source = True
    numbers = Out(Message)

    def process(self, tick: Tick) -> Emissions:
        yield self.numbers(Message())


class Config(TrainingConfig):
    pass


def build(config: Config):
    return LogicalGraph(name="numbers").with_role("worker").with_operator("source", Numbers(), role="worker")
"""


def test_check_cases_simulations_in_which_nothing_takes_time_are_refused(tmp_path: Path) -> None:
    (tmp_path / "numbers_job.py").write_text(NUMBERS)
    variants = {"n": {"job": str(tmp_path / "numbers_job.py")}}
    with pytest.raises(ConfigError, match=r"^n: nothing would take time: .* makes no gradients"):
        check_cases(quick(settings={}, variants=variants))
