"""Folders of processes, of which some are killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dataflow.runtime.scratch import Scratch

OTHER = """
from dataflow.runtime.scratch import Scratch
scratch = Scratch("test")
(scratch.path / "secret").write_text("token")
{then}
print(scratch.path, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def other(then: str = "") -> tuple[subprocess.Popen[str], Path]:
    """Another process that has a folder, and where."""
    program = [sys.executable, "-c", OTHER.format(then=then)]
    process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_folder_of_a_process_stays_while_it_lives_and_goes_with_the_next_one_if_it_is_killed() -> None:
    process, path = other()
    Scratch("test")
    assert (path / "secret").exists()
    kill(process)
    Scratch("another kind")
    assert (path / "secret").exists()
    Scratch("test")
    assert not path.exists()


def test_folder_that_was_to_be_kept_stays() -> None:
    process, path = other("path = scratch.path; scratch.keep()\nScratch.path = path")
    kill(process)
    Scratch("test")
    assert (path / "secret").exists()


def test_folder_is_private_made_when_it_is_needed_and_removed_with_all_in_it(folder: Path) -> None:
    scratch = Scratch("test")
    assert list(folder.iterdir()) == []
    scratch.close()
    path = scratch.path
    assert (path.stat().st_mode & 0o777, scratch.path) == (0o700, path)
    (path / "file").touch()
    scratch.close()
    assert list(folder.iterdir()) == []


def test_folder_that_another_process_takes_for_one_that_was_left_is_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, make, made = Scratch("test"), tempfile.mkdtemp, list[str]()

    def found_by_another(prefix: str) -> str:
        made.append(make(prefix=prefix))
        if len(made) == 1:
            Scratch("test")
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", found_by_another)
    assert scratch.path == Path(made[1])
    assert list(folder.iterdir()) == [scratch.path]


def test_link_of_that_name_is_left_alone(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "file").touch()
    (folder / "ako-test-link").symlink_to(folder / "mine")
    Scratch("test")
    assert (folder / "mine" / "file").exists()


def test_folder_that_somebody_has_removed_is_made_again(folder: Path) -> None:
    scratch = Scratch("test")
    scratch.path.rmdir()
    assert scratch.path.is_dir()
    assert list(folder.iterdir()) == [scratch.path]
    Scratch("test")
    assert scratch.path.is_dir()
    scratch.close()
