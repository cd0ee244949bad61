"""``ako lab`` where no lab can be made, and what it refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from dataflow.cli.main import main
from dataflow.errors import LabError
from dataflow.lab import commands
from dataflow.lab.plan import Command, Host, LabPlan
from dataflow.lab.state import in_use
from dataflow.runtime.state_dir import default_state_dir


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AKO_STATE_DIR", str(tmp_path / "state"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The error that a command ends with, having started nothing."""
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    return said.err


@pytest.mark.parametrize(
    "words", [["up", "2"], ["down"], ["status"], ["exec", "0", "--", "ls"], ["fault", "kill", "0"]]
)
def test_lab_without_root_and_programs_names_all_that_is_missing(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", "")
    error = refused(capsys, "lab", *words)
    for word in ("root", "ip (install iproute2)", "tc (install iproute2)", "unshare (install util-linux)"):
        assert word in error


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["up", "2", "--rates", "1gbit"], "--rates needs 2 values, one for each host (got 1gbit)"),
        (["up", "2", "--cpus", "1,1,1"], "--cpus needs 2 values, one for each host (got 1,1,1)"),
        (["up", "2", "--cpus", "1,"], "--cpus needs 2 values, one for each host (got 1,)"),
        (
            ["up", "2", "--rate", "1mbit", "--rates", "1mbit,2mbit"],
            "--rate and --rates are both given",
        ),
        (["up", "2", "--cpu", "1", "--cpus", "1,1"], "--cpu and --cpus are both given"),
        (["up", "2", "--rate", "fast"], "not a bandwidth"),
        (["up", "2", "--cpu", "half"], "not a number of cores"),
        (["up", "2", "--cpu", "0"], "a host cannot have this share of the CPU"),
        (["up", "2", "--latency", "1"], "not a time"),
    ],
)
def test_up_with_what_cannot_be_used_is_refused(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text in refused(capsys, "lab", *words)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataflow.lab.lab.require_tools", lambda: None)


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("words", [["status"], ["exec", "0", "--", "ls"], ["fault", "cut", "0"], ["run", "ako"]])
def test_lab_that_is_not_up_says_how_to_make_one(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "no lab is up" in (error := refused(capsys, "lab", *words))
    assert "ako lab up 4 --rate 100mbit" in error


@pytest.mark.usefixtures("tools")
def test_up_without_what_the_kernel_lacks_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = lacking(monkeypatch, "tbf", "netem")
    error = refused(capsys, "lab", "up", "2", "--latency", "1ms")
    assert error == "error: a lab cannot be made here; missing in the kernel, or not allowed: tbf\n"
    assert {command[0] for command in tried} == {"unshare"}


def lacking(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[Command]:
    """Have commands with one of these words fail, and all others do nothing; what has been tried."""
    tried: list[Command] = []

    def run(command: Command) -> str:
        tried.append(command)
        if set(words) & set(command):
            raise LabError(what="tc says: unknown")
        return ""

    monkeypatch.setattr(commands, "run", run)
    return tried


@pytest.mark.parametrize(
    ("latency_s", "lacks", "relayed"), [(0.001, ("netem",), True), (0.001, (), False), (0.0, ("netem",), False)]
)
def test_fit_takes_relays_where_packets_are_delayed_and_the_kernel_has_no_netem(
    latency_s: float, lacks: tuple[str, ...], relayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking(monkeypatch, *lacks)
    plan = LabPlan(name="ako-lab-12", hosts=(Host(rate=12.5e6),), latency_s=latency_s)
    assert commands.fit(plan) == plan.model_copy(update={"relayed": relayed})


@pytest.mark.parametrize("words", [["--sim"], ["--master", "127.0.0.1:7461"]])
def test_run_in_the_lab_and_elsewhere_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "in the lab, simulated, or at a master" in refused(capsys, "lab", "run", "ako", *words)


@pytest.fixture
def two_hosts(monkeypatch: pytest.MonkeyPatch) -> LabPlan:
    plan = LabPlan(name="ako-lab-12", hosts=(Host(rate=12.5e6), Host(rate=1.25e6)))
    monkeypatch.setattr("dataflow.cli.emulated.find", lambda _state_dir: plan)
    return plan


@pytest.mark.usefixtures("two_hosts")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--nodes", "3"], "a lab of 2 hosts cannot run the job's 3 nodes"),
        (["--sweep", "nodes=2,5"], "a lab of 2 hosts cannot run the job's 5 nodes"),
        (["--sim"], "in the lab, simulated, or at a master"),
        (["--master", "127.0.0.1:7461"], "in the lab, simulated, or at a master"),
    ],
)
def test_compare_what_the_lab_cannot_run_is_refused_before_anything_runs(
    words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert text in refused(capsys, "compare", "ako", "--lab", "--out", str(out), *words)
    assert not out.exists()


def test_compare_of_a_lab_without_it_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "compared.toml"
    file.write_text('lab = "2 x 100mbit"\n[variants]\nako = { job = "ako" }\n')
    error = refused(capsys, "compare", str(file), "--out", str(tmp_path / "out"))
    assert "the comparison is one in a lab (got 2 x 100mbit); add --lab" in error


@pytest.mark.usefixtures("two_hosts")
def test_compare_in_the_lab_has_its_runs_on_the_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def cluster(plan: LabPlan, state_dir: Path, nodes: int, *, ahead: Sequence[str]) -> NoReturn:
        assert "operators.apply" in ahead
        asked.append((plan.name, state_dir.name, nodes))
        raise LabError(what="none today")

    monkeypatch.setattr("dataflow.cli.emulated.lab_cluster", cluster)
    # Host 0 has another rate by now.
    monkeypatch.setattr("dataflow.cli.compare.as_it_is", lambda plan: plan.with_rate(0, 2.5e6))
    assert main(["compare", "ako", "all_to_all", "--lab", "--seeds", "1", "--out", str(tmp_path), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert asked == [("ako-lab-12", "state", 2)] * 2
    assert (said["comparison"]["lab"], said["comparison"]["nodes"]) == ("20mbit, 10mbit", 2)
    assert [run["reason"] for run in said["failures"]] == ["none today"] * 2


def test_lab_that_a_comparison_is_made_in_is_held_from_first_to_last(
    two_hosts: LabPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refusals = []

    def cluster(plan: LabPlan, state_dir: Path, nodes: int, *, ahead: Sequence[str]) -> NoReturn:
        raise LabError(what="none today")

    def compared(comparison: object, out: Path, progress: object, make: object) -> NoReturn:
        with pytest.raises(LabError, match="the lab is in use"), in_use(default_state_dir(), alone=True):
            pass
        refusals.append(comparison)
        raise LabError(what="that will do")

    monkeypatch.setattr("dataflow.cli.emulated.lab_cluster", cluster)
    monkeypatch.setattr("dataflow.cli.compare.as_it_is", lambda plan: plan)
    monkeypatch.setattr("dataflow.cli.compare.run_comparison", compared)
    assert main(["compare", "ako", "--lab", "--out", str(tmp_path / "out")]) == 2
    assert "that will do" in capsys.readouterr().err
    assert len(refusals) == 1
    with in_use(default_state_dir(), alone=True):
        pass


@pytest.mark.usefixtures("tools")
def test_lab_that_was_replaced_since_it_was_found_is_not_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = iter(Host(rate=rate) for rate in (12.5e6, 1e6))
    monkeypatch.setattr("dataflow.cli.emulated.find", lambda _: LabPlan(name="ako-lab-12", hosts=(next(found),)))
    assert "another lab has been made in the place of this one" in refused(capsys, "lab", "run", "ako")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["300"], "less than or equal to 250"),
        (["2", "--rate", "1kbit"], "a host's link cannot have this rate (got 1kbit); say 8kbit to 800gbit"),
        (["2", "--rates", "1mbit,2000gbit"], "a host's link cannot have this rate (got 2000gbit)"),
        (["2", "--cpu", "0"], "a host cannot have this share of the CPU (got 0); say 0.05 to 1024 cores"),
        (["2", "--cpus", "1,nan"], "a host cannot have this share of the CPU (got nan)"),
    ],
)
def test_lab_up_with_what_no_host_has_says_what_was_typed_and_the_limits(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "up", *arguments]) == 2
    assert said in capsys.readouterr().err
