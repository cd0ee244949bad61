from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ako_jobs.result_folder import held_folder
from dataflow.cli.main import main
from dataflow.errors import ConfigError

SIMULATED = ["--sim", "--step-time", "5ms", "--nodes", "2"]


def test_held_folder_is_kept_from_others_until_its_end(tmp_path: Path) -> None:
    with held_folder(tmp_path / "out") as folder:
        assert folder == tmp_path / "out"
        with pytest.raises(ConfigError, match="another run writes its results to the folder"), held_folder(folder):
            pass
    with held_folder(folder):
        pass
    with held_folder(None) as none:
        assert none is None


@pytest.mark.parametrize("words", [[], SIMULATED], ids=["real", "simulated"])
def test_run_is_refused_the_folder_of_one_that_has_not_ended(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with held_folder(tmp_path):
        assert main(["run", "ako", "epochs=1", "--out", str(tmp_path), *words]) == 2
    assert f"another run writes its results to the folder (got {tmp_path}); name" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [[], SIMULATED], ids=["real", "simulated"])
def test_run_says_that_its_results_cannot_be_written(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write_bytes(path: Path, _data: bytes) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    assert main(["run", "ako", "epochs=0.1", "--nodes", "2", "--out", str(tmp_path), *words]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: the run has ended, but its results cannot be written: [Errno 30] Read-only file")
    assert f"(got {tmp_path}); make room there, or name a folder on another disk" in last
