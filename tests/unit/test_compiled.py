"""Which form is imported. A compiled module is stood in for by one of Python's own, which has no `FORM`."""

from __future__ import annotations

import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import dataflow
from dataflow.compiled import FOLDER, SWITCH

PROGRAM = """
import dataflow._heapq as part
from dataflow import compiled
print(getattr(part, "FORM", "compiled"), *compiled.form(), sep="\\n")
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package `dataflow` with one module, `_heapq`, that has just been compiled."""
    spec = importlib.util.find_spec("_heapq")
    if spec is None or not str(spec.origin).endswith(EXTENSION_SUFFIXES[0]):
        pytest.skip("this Python has _heapq built in")
    folder = tmp_path / "dataflow"
    (folder / FOLDER / "dataflow").mkdir(parents=True)
    for name in ("__init__.py", "compiled.py"):
        shutil.copy(Path(dataflow.__file__).with_name(name), folder)
    (folder / "_heapq.py").write_text("FORM = 'source'\n")
    (folder / "types.py").write_text("")
    shutil.copy(str(spec.origin), folder / FOLDER / "dataflow")
    note(folder)
    return folder


def note(package: Path, failure: str = "") -> None:
    runpy.run_path(str(package / "compiled.py"))["note"](str(package / FOLDER), ["_heapq.py", "types.py"], failure)


def imported(package: Path, **environment: str) -> list[str]:
    """What a process imports, whether it says that this is compiled, why not, and what to do."""
    inherited = {name: value for name, value in os.environ.items() if name != SWITCH}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],  # Python looks in the current directory first
        cwd=package.parent,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split("\n")[:4]


def test_import_of_what_was_compiled_from_these_sources_is_compiled(package: Path) -> None:
    assert imported(package) == ["compiled", "True", "", ""]


def test_import_with_the_switch_is_from_the_source(package: Path) -> None:
    assert imported(package, AKO_INTERPRETED="1") == [
        "source",
        "False",
        "AKO_INTERPRETED is set",
        "unset AKO_INTERPRETED",
    ]


@pytest.mark.parametrize("name", ["_heapq.py", "types.py"])
def test_import_after_an_edit_is_from_the_source_until_the_edit_is_undone(package: Path, name: str) -> None:
    source = package / name
    before = source.read_text()
    source.write_text(before + "# edited\n")
    form, compiled, why, fix = imported(package)
    assert (form, compiled, why) == ("source", "False", f"dataflow/{name} has changed since it was compiled")
    assert "pip install -e ." in fix
    source.write_text(before)
    assert imported(package)[0] == "compiled"


def test_import_after_a_source_has_gone_is_from_the_source(package: Path) -> None:
    (package / "types.py").unlink()
    assert imported(package)[:3] == ["source", "False", "dataflow/types.py has changed since it was compiled"]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda package: shutil.rmtree(package / FOLDER), "it has not been compiled here"),
        (lambda package: (package / FOLDER / "manifest").write_text(""), "it has not been compiled here"),
        (
            lambda package: (package / FOLDER / "manifest").write_text(".cpython-399-vax.so\n\n"),
            "it was compiled for another Python, .cpython-399-vax.so",
        ),
        (lambda package: note(package, "no\n'gcc'"), "it could not be compiled: no 'gcc'"),
    ],
    ids=["never", "empty", "another-python", "failed"],
)
def test_import_of_what_is_not_compiled_is_from_the_source(
    package: Path, damage: Callable[[Path], object], why: str
) -> None:
    damage(package)
    assert imported(package)[:3] == ["source", "False", why]
