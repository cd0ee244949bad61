from __future__ import annotations

import os
from pathlib import Path

import pytest

from dataflow.cli.main import main
from dataflow.errors import MasterError
from dataflow.runtime.state_dir import ENDPOINT_FILE, read_endpoint, write_endpoint


def test_endpoint_is_what_was_written_and_empty_before(tmp_path: Path) -> None:
    assert read_endpoint(tmp_path) == ""
    write_endpoint(tmp_path, "127.0.0.1:7461")
    assert read_endpoint(tmp_path) == "127.0.0.1:7461"


def test_endpoint_that_is_as_it_was_takes_no_room_and_another_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    write_endpoint(tmp_path, "127.0.0.1:7461")
    (tmp_path / f"{ENDPOINT_FILE}.new").mkdir()  # nothing can be written there
    write_endpoint(tmp_path, "127.0.0.1:7461")
    with pytest.raises(MasterError, match=r"cannot write the master's address: .*; make some room"):
        write_endpoint(tmp_path, "127.0.0.1:7462")


@pytest.mark.parametrize("words", [["ls"], ["master"], ["doctor"], ["token"], ["lab", "status"]])
def test_user_without_a_home_is_told_what_to_set(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AKO_STATE_DIR", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)  # whom no file of users has
    assert main(words) == 2
    assert "this user has no home directory, where the master's state is kept; set HOME" in capsys.readouterr().err


def test_certificates_that_cannot_be_kept_are_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["token", "--tls", "--state-dir", str(tmp_path / "file" / "state")]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: cannot keep the cluster's certificates there: Not a directory at ")
    assert told.count("\n") == 1


def test_endpoint_that_is_no_text_is_refused_with_its_file_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ENDPOINT_FILE).write_bytes(b"\xff\xfe")
    with pytest.raises(MasterError, match=f"address is broken at {tmp_path / ENDPOINT_FILE}; restart the master"):
        read_endpoint(tmp_path)
    monkeypatch.setenv("AKO_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("AKO_TOKEN", "x")
    assert main(["ls"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    main(["doctor"])
    assert "port: the file of the master's address is broken" in capsys.readouterr().out


def test_doctor_of_a_user_without_a_home_names_no_place_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AKO_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)  # whom no file of users has
    main(["doctor"])
    assert "no home directory, where the files of mnist could be; set HOME" in capsys.readouterr().out
