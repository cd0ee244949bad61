from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from dataflow.cli.main import main
from dataflow.errors import ConfigError
from dataflow.home import expanded


def test_expanded_is_below_home_where_the_path_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of-mine")
    assert expanded("~/out") == Path("/home/of-mine/out")
    assert expanded(Path("out/~")) == Path("out/~")


def test_expanded_refuses_the_home_of_a_user_whom_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> object:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(
        ConfigError, match=r"home directory is \(got ~/out\); write the path from the root, or set HOME"
    ):
        expanded("~/out")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "ako", "--out", "~nobody-of-this-name/out"],
        ["run", "ako", "--resume", "~nobody-of-this-name/kept/1"],
        ["run", "ako", "data=mnist", "data_dir=~nobody-of-this-name/mnist"],
        ["submit", "ako", "checkpoint_dir=~nobody-of-this-name/kept"],
        ["check", "~nobody-of-this-name/my_job.py"],
        ["compare", "ako", "--out", "~nobody-of-this-name/out"],
        ["compare", "~nobody-of-this-name/all.toml", "--out", "out"],
    ],
    ids=["out", "resume", "data_dir", "checkpoint_dir", "job", "comparison", "file of a comparison"],
)
def test_command_refuses_a_path_in_a_home_that_there_is_not(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    *_warnings, error = capsys.readouterr().err.splitlines()
    assert error.startswith("error: nobody knows where that home directory is (got ~nobody-of-this-name/")


def test_command_refuses_a_certificate_in_a_home_that_there_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AKO_CA", "~nobody-of-this-name/ca.pem")
    assert main(["ls"]) == 2
    assert "home directory is (got ~nobody-of-this-name/ca.pem)" in capsys.readouterr().err
