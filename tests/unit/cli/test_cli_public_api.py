from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dataflow

TREE = ast.parse(Path(dataflow.__file__).read_text())
IMPORTS = {
    alias.name: node.module for node in ast.walk(TREE) if isinstance(node, ast.ImportFrom) for alias in node.names
}


@pytest.mark.parametrize("name", dataflow.__all__)
def test_public_name_is_the_one_that_type_checkers_see(name: str) -> None:
    module = __import__(str(IMPORTS[name]), fromlist=[name])
    assert getattr(dataflow, name) is getattr(module, name)


def test_public_names_are_all_listed() -> None:
    assert sorted(set(IMPORTS) - {"TYPE_CHECKING", "Any", "compiled"}) == dataflow.__all__ == dir(dataflow)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dataflow.nothing


def test_import_of_the_package_loads_nothing_else() -> None:
    code = "import sys, dataflow; print(*(name for name in sys.modules if name.startswith(('dataflow', 'numpy'))))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert sorted(loaded) == ["dataflow", "dataflow.compiled"]
