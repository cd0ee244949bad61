"""How processes of ours are started."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataflow.runtime.starting import module_command


def test_current_folder_is_searched_for_modules_only_where_it_is_the_one_that_has_this_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "-P" in module_command("dataflow.cli.main")
    monkeypatch.chdir(Path(__file__).parents[3])
    assert "-P" not in module_command("dataflow.cli.main")
