from __future__ import annotations

import importlib.util
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from ako_jobs.compare import identity
from ako_jobs.compare.comparison import Comparison
from ako_jobs.compare.runs import Outcome, runs
from ako_jobs.run import MakeCluster
from dataflow.cli.compare_progress import CompareProgress
from dataflow.cli.main import main
from dataflow.observe.events import JobEvent
from dataflow.reports import OperatorReport
from dataflow.runtime.cluster_processes import Nursery

EXAMPLE = Path(__file__).parents[3] / "examples" / "compare_digits.toml"
HALF = ("epochs=0.5", "warm_start=0", "holdout=0", "--nodes", "2", "--seeds", "1")
STEPS_OF_1_MS = ("--sim", "--step-time", "1ms")


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where matplotlib is not installed: drawing takes longer than the runs."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))


def test_compare_simulated_topologies_gives_the_traffic_and_times_of_the_papers_formulas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two workers send m (n - 1) per gradient in all-to-all, and m (n - 1) / p as Ako (ako.txt, 4.2)."""
    out = tmp_path / "out"
    jobs = ("all_to_all", "ako p=1 every=1", "ako p=4 every=1")
    assert main(["compare", *jobs, *HALF, *STEPS_OF_1_MS, "--json", "--out", str(out)]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found == json.loads((out / "table.json").read_text())
    everybody, whole, quarter = found["rows"]
    assert [row["variant"] for row in found["rows"]] == list(jobs)
    assert whole["sent_nbytes"] == pytest.approx(everybody["sent_nbytes"], rel=0.02)
    assert quarter["sent_nbytes"] == pytest.approx(whole["sent_nbytes"] / 4, rel=0.1)
    # 1,442 images in mini-batches of 8 are 180 steps, of two nodes at once.
    assert whole["epoch_s"]["median"] == pytest.approx(0.090, rel=0.05)
    assert whole["computing"] == pytest.approx(1.0, abs=0.05)
    assert re.search(r"3/3  ako p=4 every=1, seed 0: 0\.0[0-9]{3} s, accuracy ", said.err)
    assert (out / "table.md").read_text().startswith("| VARIANT | RUNS |")


def test_compare_has_all_clusters_forked_from_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nurseries: list[Nursery] = []

    def run(_comparison: Comparison, _out: Path, _watcher: CompareProgress, make_cluster: MakeCluster) -> None:
        for nodes in (1, 2):
            make_cluster(nodes)
        raise KeyboardInterrupt

    monkeypatch.setattr("dataflow.cli.emulated.LocalCluster", lambda _, nursery: nurseries.append(nursery))
    monkeypatch.setattr("dataflow.cli.compare.run_comparison", run)
    assert main(["compare", "ako", *HALF, "--out", str(tmp_path / "out")]) == 130
    first, second = nurseries
    assert first is second


@pytest.mark.usefixtures("no_pictures")
def test_compare_again_with_more_seeds_runs_those_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "ako", "phantom=true", *HALF[:-1], "1", *STEPS_OF_1_MS, "--out", str(tmp_path)]
    assert main(command) == 0
    capsys.readouterr()
    assert main([*command, "--seeds", "2"]) == 0
    said = capsys.readouterr()
    assert re.search(r"1/2  ako, seed 0: 0\.0\d{3} s \(run before\)\n2/2  ako, seed 1: 0\.0\d{3} s\n", said.err)
    assert "2 of 2" in said.out
    assert main([*command, "--tasks", "2"]) == 2
    assert "the folder holds another comparison" in capsys.readouterr().err


@pytest.mark.usefixtures("no_pictures")
def test_compare_again_after_the_code_has_changed_says_how_many_runs_are_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["compare", "ako", "all_to_all", "phantom=true", *HALF, *STEPS_OF_1_MS, "--out", str(tmp_path)]
    assert main(command) == 0
    assert "run again" not in capsys.readouterr().err
    monkeypatch.setattr(identity, "installed_versions", lambda: {"ako-dataflow": "99.0"})
    assert main(command) == 0
    said = capsys.readouterr().err
    said_why = "the job's code, Ako's version or the record has changed since"
    assert f"note: 2 runs that finished are run again: {said_why}\n" in said
    assert "run before" not in said


@pytest.mark.usefixtures("no_pictures")
def test_compare_file_with_options_beside_it_is_the_file_but_for_these(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", str(EXAMPLE), "ako p=2", "phantom=true", *HALF, "--latency", "1ms", "--out", str(tmp_path)]
    assert main([*command, "--sweep", "bandwidth=1gbit", "--json"]) == 0
    asked = json.loads(capsys.readouterr().out)["comparison"]
    assert list(asked["variants"]) == ["Ako", "PS[3+1]", "all-to-all", "ako p=2"]
    assert asked["variants"]["ako p=2"] == {"job": "ako", "settings": {"p": "2"}}
    assert asked["settings"]["epochs"] == "0.5"
    assert (asked["nodes"], asked["seeds"], asked["target"], asked["sweep"]) == (2, 1, 0.9, {"bandwidth": ["1gbit"]})
    cluster = asked["cluster"]
    assert (cluster["compute"], cluster["step_time"], cluster["latency"]) == ("gamma", "2ms", "1ms")


def test_compare_with_failed_runs_ends_with_1_and_says_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", "ako", "phantom=true", "min_nodes=2", *HALF, *STEPS_OF_1_MS, "--fault", "fail:1@0.01"]
    assert main([*command, "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "0 of 1, 1 failed" in said.out
    assert "1 of 1 runs failed:\n\n- ako, seed 0: " in said.err
    assert "it failed at second 0.01, as declared" in said.err


@pytest.mark.usefixtures("no_pictures")
def test_compare_without_matplotlib_writes_the_table_and_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "ako", "phantom=true", *HALF, *STEPS_OF_1_MS, "--out", str(tmp_path)]) == 0
    assert "no pictures: matplotlib is not installed; pip install 'ako-dataflow[plots]'" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["comparison.json", "runs", "table.json", "table.md"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["epochs=2"], "there is nothing to compare"),
        (["ako", "ako"], "a job is given twice (got ako)"),
        (["ako p=1", "ako  p=1 "], "a job is given twice (got ako p=1)"),
        (["", "ako"], "there is no such job (got '')"),
        (["ako 'p=1"], "not a job and its settings: No closing quotation"),
        (["ako p"], "not a setting (got p); write key=value"),
        (["ako", "all_to_al"], "all_to_al: there is no such job (got all_to_al); did you mean 'all_to_all'?"),
        (["ako", "ako x=1"], "ako x=1: unknown key (got x)"),
        (["ako", "--bandwidth", "1gbit"], "options of a simulated cluster without --sim"),
        (["ako", "--sim", "--bandwidth", "0mbit"], "ako: not a bandwidth (got 0mbit)"),
        (["ako", "--sim", "--master", "localhost:1"], "a simulation runs in this process"),
        (["ako", "--master", "localhost"], "not an address of a master"),
        (["ako", "--sweep", "p"], "not a setting (got p); write KEY=A,B"),
        (["parameter_server", "--sweep", "nodes=1,2"], "parameter_server nodes=1: the roles of"),
        (["nowhere.toml"], "the comparison cannot be read"),
        (["a.toml", "b.toml"], "more than one comparison is given"),
        (["ako", "--target", "99"], "target: must be less than or equal to 1 (got 99"),
    ],
)
def test_compare_bad_input_is_one_error_and_exit_2_and_leaves_no_folder(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *arguments, "--out", str(tmp_path / "out")]) == 2
    errors = capsys.readouterr().err
    assert re.match(r"error: ", errors)
    assert said in errors
    assert not (tmp_path / "out").exists()


def progress_of_two_runs(*, terminal: bool) -> str:
    first, second = runs(Comparison.parse({"variants": {"a": {"job": "ako"}}, "seeds": 2}))
    report = OperatorReport("validate.results", {"epoch": 1.5, "accuracy": 0.875})
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, markup=False, highlight=False)
    with CompareProgress(2, console) as progress:
        progress.begin(first)
        progress.start(4.0)
        progress.event(JobEvent(0, 0.0, 2.0, report=report))
        progress.end(Outcome(first, {"state": "FINISHED", "run_s": 75.0, **NOTHING}))
        progress.begin(second)
        progress.end(Outcome(second, None, "nobody answers"))
    return out.getvalue()


NOTHING = {
    "reports": [{"accuracy": 0.875, "epoch": 1.5}],
    "nodes": [],
    "totals": {"sent_nbytes": 0, "staleness_mean": None},
}


def test_progress_not_on_a_terminal_is_a_line_for_each_run() -> None:
    assert progress_of_two_runs(terminal=False).splitlines() == [
        "1/2  a, seed 0: 1:15, accuracy 87.50%",
        "2/2  a, seed 1: failed: nobody answers",
    ]


def test_progress_on_a_terminal_has_bars_for_all_runs_and_for_this_one() -> None:
    text = progress_of_two_runs(terminal=True)
    assert "all runs" in text
    assert "87.50% after 2.00 s" in text
    assert "1/2  a, seed 0: 1:15, accuracy 87.50%" in text
