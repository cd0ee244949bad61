from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from ako_jobs import simulate
from dataflow.cli.common import finite
from dataflow.cli.main import VERBS, main
from dataflow.compiled import Form
from dataflow.errors import AkoError
from dataflow.runtime.starting import ONE_THREAD


def test_main_without_verb_lists_all_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = re.findall(r"^  (\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert listed[: len(VERBS)] == list(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_main_every_verb_has_help_of_its_own(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"Usage: ako {verb}" in said
    assert " range>" not in said, "an option has no metavar"


def test_main_unknown_verb_is_one_line_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rnu"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: there is no such verb (got rnu); did you mean 'run'?")
    assert said.err.count("\n") == 1


def test_main_full_disk_under_the_output_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    assert main(["--version"]) == 1
    assert capsys.readouterr().err == "error: cannot write the output: No space left on device; free some\n"


def closed(path: Path) -> bool:
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


def test_main_place_that_may_not_be_entered_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Path, "exists", closed)
    assert main(["run", "ako", "--json", str(tmp_path / "run.json")]) == 2
    said = f"error: a file or folder may not be used: Permission denied at {tmp_path / 'run.json'}; name another one, "
    assert capsys.readouterr().err == f"{said}or have its owner let you\n"


def test_doctor_tells_of_a_state_directory_that_may_not_be_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Path, "exists", closed)
    assert main(["doctor", "--state-dir", str(tmp_path)]) == 1
    assert f"failed  state directory: {tmp_path} is not writable: [Errno 13] Permission" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_main_output_that_nobody_reads_is_no_traceback(word: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        ended = subprocess.run(
            [sys.executable, "-m", "dataflow.cli.main", word], stdout=output, stderr=subprocess.PIPE, check=False
        )
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_main_pause_of_longer_than_a_day_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "fault", "pause", "1", "1e300"]) == 2
    said = capsys.readouterr().err  # of the bound and the number, in words of ours, or of the release of typer
    assert "86400" in said
    assert re.search(r"\b1e\+?300\b", said)


@pytest.mark.parametrize("number", ["nan", "inf"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["chaos", "ako", "--nodes", "4", "--dry-run", "--seconds"],
        ["chaos", "ako", "--nodes", "4", "--dry-run", "--accuracy"],
        ["lab", "fault", "loss", "1"],
        ["lab", "fault", "pause", "1"],
        ["node", "--end-jobs-after"],
    ],
    ids=" ".join,
)
def test_main_number_that_is_not_finite_is_refused(
    arguments: list[str], number: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("dataflow.cli.chaos.plan_faults", never)
    monkeypatch.setattr("dataflow.cli.node.serve_until_signal", never)
    assert main([*arguments, number]) == 2
    assert "invalid value" in capsys.readouterr().err  # in words of ours, or of the release of typer
    with pytest.raises(typer.BadParameter, match=f"{number} is not a finite number"):
        finite(float(number))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "akoo"], "there is no such job (got akoo); did you mean 'ako'?"),
        (["run", "ako", "lrr=1"], "unknown key (got lrr); did you mean 'lr'?"),
        (["run", "ako", "lr=fast"], "lr: must be a positive number (got fast)"),
        (["run", "ako", "lr"], "not a setting (got lr); write key=value"),
        (["run", "ako", "=1"], "not a setting (got =1)"),
        (["run", "ako", "lr=1", "lr=2"], "the setting 'lr' is given twice"),
        (["run", "parameter_server", "--nodes", "1"], "need at least 2 nodes"),
        (["run", "ako", "--json", "/nowhere/out.json"], "the record cannot be written there"),
        (["run", "ako", "--master", "localhost"], "not an address of a master (got localhost)"),
        (["submit", "ako", "--master", "127.0.0.1:99999"], "not an address of a master"),
        (["submit", "ako", "--master", "::1"], "not an address of a master"),
        (["check", "ako", "data=mnist", "data_dir=/nowhere"], "ako data fetch mnist"),
        (["data", "fetch", "mnits"], "did you mean 'mnist'?"),
        (["predict", "/nowhere"], "there is no trained model here"),
        (["token", "--state-dir", "/nowhere"], "cannot read the cluster's token"),
        (["master", "--port", "0", "--state-dir", __file__], "cannot keep the master's state there"),
        (
            ["master", "--metrics-host", "127.0.0.1"],
            "metrics have an address and no port (got 127.0.0.1); add --metrics-port",
        ),
        (["chaos", "ako", "--nodes", "1", "--dry-run", "--only", "cut"], "a fault between two hosts needs two: cut"),
        (["chaos", "ako", "--nodes", "4", "--dry-run", "--only", ","], "there is no such fault (got ''); one of kill,"),
        (
            ["chaos", "ako", "time=30", "--nodes", "4", "--dry-run"],
            "stopped 15 s after the faults, and at no other time",
        ),
        (
            ["node", "--master", "10.0.0.1:7461", "--json", "drain", "a"],
            "options of `ako node` before drain, which knows nothing of them (got --master, --json)",
        ),
        (["status", "--state-dir", __file__], "cannot read the cluster's token"),
    ],
)
def test_main_bad_input_is_one_error_and_exit_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], ["missing argument 'JOB", "; see `ako run --help`"]),
        (["run", "ako", "--nodes"], ["'--nodes' requires an argument; see `ako run --help`"]),
        (["run", "ako", "--nodes", "0"], ["invalid value for '--nodes' / '-n': ", " 0", "; see `ako run --help`"]),
        (["plan", "ako", "--format", "png"], ["invalid value for '--format' / '-f': ", "'png'", "'mermaid'"]),
        (["ls", "--wrong"], ["no such option", "--wrong"]),
        (["data", "lss"], ["'lss'", "; see `ako data --help`"]),
        (["node", "drain"], ["missing argument 'NAME", "; see `ako node drain --help`"]),
    ],
)
def test_main_wrong_usage_is_one_error_and_exit_2(
    arguments: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert [words for words in said if words not in captured.err] == []


def test_main_choice_that_there_is_not_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "--role", "fool"]) == 2
    said = capsys.readouterr().err
    assert said.count("fool") == 1
    assert "'submit'" in said


def test_main_group_without_a_verb_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data"]) == 2
    assert "Usage: ako data" in capsys.readouterr().err


def test_main_output_folder_in_use_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "record.json").write_text("{}")
    assert main(["run", "ako", "--out", str(tmp_path)]) == 2
    assert "the folder for the results is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize(("taken", "said"), [("", "not empty"), ("notes.txt/deeper", "cannot write results there")])
def test_main_output_folder_of_a_simulation_is_looked_at_before_anything_is_measured(
    taken: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(simulate, "profile_job", measure)
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["run", "ako", "--sim", "--out", str(tmp_path / taken)]) == 2
    assert said in capsys.readouterr().err


FAILING_JOB = """
from ako_jobs import ako
from dataflow import Emissions, In, LogicalGraph, Operator, Out
from operators.messages import Batch


class Fails(Operator):
    batches = In(Batch)
    same = Out(Batch)

    def process(self, batch: Batch) -> Emissions:
        raise ValueError("boom")
        yield


Config = ako.Config


def build(config: Config) -> LogicalGraph:
    return ako.build(config).insert_after("source", Fails())
"""


@pytest.mark.parametrize("times", [[], ["--step-time", "5ms"]])
def test_main_simulation_that_fails_leaves_a_record_and_a_log_whether_or_not_its_tasks_are_measured(
    times: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, out = tmp_path / "failing_job.py", tmp_path / "out"
    job.write_text(FAILING_JOB)
    command = ["run", str(job), "--nodes", "2", "--sim", *times, "--json", "-", "--out", str(out)]
    assert main(command) == 1
    said = capsys.readouterr()
    record = json.loads(said.out)
    assert record == json.loads((out / "record.json").read_text())
    assert record["state"] == "FAILED"
    assert "operator 'fails' raised ValueError: boom" in record["reason"]
    assert f"{job.name}:12" in record["reason"]
    assert "ValueError: boom" in (out / "job.log").read_text().splitlines()
    assert f"its log is {out / 'job.log'}" in said.err


@pytest.mark.parametrize("option", ["--out", "--json"])
def test_main_target_that_may_not_be_written_is_refused_before_anything_starts(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    allowed = os.access
    # Root may write anywhere, so the refusal of the file system is made up.
    monkeypatch.setattr(
        os, "access", lambda path, mode: not str(path).startswith(str(tmp_path)) and allowed(path, mode)
    )
    target = tmp_path / "new" if option == "--out" else tmp_path / "out.json"
    assert main(["run", "ako", option, str(target)]) == 2
    assert "written there" in (said := capsys.readouterr().err) or "cannot write results there" in said
    assert "DEPLOYING" not in said


def test_main_truncated_data_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for stem in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / f"{stem}-ubyte").write_bytes(b"\0\0\x08\x03\0\0")
    assert main(["run", "ako", "data=mnist", f"data_dir={tmp_path}"]) == 2
    assert "train-images-idx3-ubyte" in capsys.readouterr().err


def test_main_unreachable_master_is_exit_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AKO_TOKEN", "anything")
    assert main(["ls", "--master", "127.0.0.1:9"]) == 2
    assert "the master cannot be reached at 127.0.0.1:9" in capsys.readouterr().err


def test_main_traceback_is_shown_on_demand(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AKO_TRACEBACK", "1")
    assert main(["rnu"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["text", "mermaid", "dot"])
def test_plan_of_each_job_shows_the_same_operators(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    for job in ("ako", "parameter_server", "all_to_all"):
        assert main(["plan", job, "--nodes", "8", "--format", form]) == 0
        text = capsys.readouterr().out
        for operator in ("source", "compute", "send", "receive", "validate", "keep_model"):
            assert operator in text


def test_plan_of_trees_recommends_the_one_with_the_shortest_delay_that_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sum of 13,706 weights takes 60 ms here: a node with 63 neighbours has 7.6 s of work in each second."""
    monkeypatch.setattr("dataflow.cli.trees.measure_connection", lambda nbytes: (0.06, 0.0))
    assert main(["plan", "tree", "--nodes", "64", "--rate", "1gbit", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["topologies"]
    assert [each["topology"] for each in found[-2:]] == ["twin_masters", "star"]
    assert [max(each["busy"], each["link"]) < 1 for each in found] == [True] * 4 + [False] * 3
    assert main(["plan", "tree", "--nodes", "64", "--rate", "1gbit"]) == 0
    assert f"recommended: topology={found[0]['topology']} (the shortest delay" in capsys.readouterr().out


def test_plan_of_another_job_with_a_rate_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "ako", "--rate", "1gbit"]) == 2
    assert "topologies are compared for the job tree" in capsys.readouterr().err


def test_check_with_an_audit_says_that_all_updates_are_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "tree", "topology=star", "epochs=0.05", "warm_start=0", "--audit", "--nodes", "3"]) == 0
    assert "tree on 3 nodes: every node ends with all 9 updates" in capsys.readouterr().out


def test_plan_as_json_is_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "parameter_server", "servers=2", "--nodes", "5", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [node["roles"] for node in plan["nodes"]] == [["worker"]] * 3 + [["server"]] * 2


def test_check_lists_settings_with_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "ako", "--settings"]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"^p +auto +integer \| auto +number of partitions", listed, re.MULTILINE)
    assert re.search(r"^nesterov +false +true \| false +whether", listed, re.MULTILINE)
    assert main(["check", "ako", "--settings", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert (first["key"], first["default"]) == ("data", "digits")


def test_check_sound_job_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "all_to_all", "lr=0.05", "--nodes", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nodes"] == 2
    assert {"source", "compute", "send", "receive", "apply"} <= set(found["operators"])
    assert found["warnings"] == ["effective learning rate: 2 workers x lr 0.05 = 0.1 per round (updates add up)"]


def test_data_ls_lists_the_embedded_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "ls", "--data-dir", str(tmp_path), "--json"]) == 0
    sets = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert (sets["digits"]["train"], sets["digits"]["test"], sets["digits"]["image"]) == (1442, 355, "1x8x8")
    assert [name for name, each in sets.items() if not each["found"]] == ["mnist", "fashion-mnist", "cifar10"]


def test_doctor_finds_nothing_that_fails_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--state-dir", str(tmp_path / "new"), "--json"]) == 0
    findings = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert {each["state"] for each in findings.values()} <= {"ok", "warning"}
    assert findings["data digits"]["found"] == "1,442 training images"
    assert findings["BLAS threads"]["state"] == "ok"
    assert {"python", "package numpy", "cores", "kernel cache", "port", "open files"} <= findings.keys()


@pytest.mark.parametrize(
    ("form", "row"),
    [
        (Form(compiled=True), ("ok", "compiled", "")),
        (
            Form(compiled=False, why="AKO_INTERPRETED is set", fix="unset AKO_INTERPRETED"),
            ("warning", "interpreted: AKO_INTERPRETED is set", "unset AKO_INTERPRETED"),
        ),
    ],
)
def test_doctor_says_which_form_of_the_engine_runs(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    form: Form,
    row: tuple[str, str, str],
) -> None:
    monkeypatch.setattr("dataflow.compiled.form", lambda: form)
    assert main(["doctor", "--state-dir", str(tmp_path / "new"), "--json"]) == 0
    (engine,) = [each for each in json.loads(capsys.readouterr().out) if each["name"] == "engine"]
    assert (engine["state"], engine["found"], engine["fix"]) == row


def test_light_verbs_load_no_numpy() -> None:
    code = "import sys, dataflow.cli.main, dataflow.cli.jobs, dataflow.cli.node; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "dataflow.runtime.client" in loaded
    assert {"numpy", "numba", "operators", "ako_jobs", "pydantic"} & set(loaded) == set()


def test_help_of_the_command_loads_no_framework() -> None:
    code = "import sys, dataflow.cli.main as m; m.main([]); print(*sys.modules, file=sys.stderr)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split()
    assert {"typer", "rich", "grpc", "numpy"} & set(loaded) == set()


@pytest.mark.parametrize("words", [["--help"], ["ako", "lr"], ["ako", "--sim", "--lab"]])
def test_arguments_of_run_are_read_before_anything_is_loaded_that_computes(words: list[str]) -> None:
    code = f"import sys, dataflow.cli.main as m; m.main({['run', *words]}); print(*sys.modules, file=sys.stderr)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split()
    assert "dataflow.cli.train" in loaded
    assert {"numpy", "numba", "networkx", "operators", "dataflow.cli.training"} & set(loaded) == set()


def test_processes_of_a_job_without_a_tree_load_nothing_for_trees() -> None:
    code = "import sys; from ako_jobs.jobs import *; import dataflow.runtime.master, dataflow.runtime.zygote"
    made = f"{code}; prepare(load_job('ako'), {{'data': 'digits'}}, 2); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", made], capture_output=True, text=True, check=True).stdout.split()
    assert {"ako_jobs.ako", "operators.apply", "numba"} < set(loaded)
    assert {"networkx", "operators.neighbours", "operators.shared_replica", "operators.topology"} & set(loaded) == set()


@pytest.mark.parametrize(
    ("words", "begun"),
    [
        (["ako"], [["ako_jobs.ako"]]),
        (["tree", "--nodes", "2"], [["ako_jobs.tree"]]),
        (["my_job.py"], []),
        (["ako", "--sim"], []),
        (["ako", "--master", "127.0.0.1:9"], []),
    ],
)
def test_run_has_its_processes_imported_for_while_it_imports_itself(
    words: list[str], begun: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr("dataflow.runtime.cluster_processes.Nursery.begin", lambda _, ahead: calls.append(ahead))
    monkeypatch.setattr("dataflow.cli.training.run", lambda *_, **__: calls.append(["run"]))
    assert main(["run", *words]) == 0
    assert calls == [*begun, ["run"]]


def test_run_whose_processes_cannot_be_started_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("dataflow.runtime.cluster_processes.subprocess.Popen", fail)
    assert main(["run", "ako", "--nodes", "1"]) == 2
    said = capsys.readouterr().err
    assert "error: master of the local cluster cannot be started: [Errno 11]" in said
    assert "use fewer nodes" in said


def test_main_sets_one_blas_thread_before_numpy_loads() -> None:
    code = (
        "import os, sys, dataflow.cli.main as m; assert 'numpy' not in sys.modules; "
        "m.main(['check', 'ako', '--settings']); print(os.environ['OPENBLAS_NUM_THREADS'], file=sys.stderr)"
    )
    others = {name: value for name, value in os.environ.items() if name not in ONE_THREAD}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=others)
    assert ended.stderr.strip() == "1"


def test_errors_know_their_exit_codes() -> None:
    public = [error for error in AkoError.__subclasses__() if error.__module__ == AkoError.__module__]
    assert {error.__name__ for error in public if error.exit_code == 1} == {
        "OperatorError",
        "WireError",
        "JobFailedError",
        "DrainError",
    }
