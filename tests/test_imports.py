"""Who may import whom: the layer table of the architecture, read from the sources with `ast`.

Nothing is imported here: the rules hold for files that cannot run where the tests do.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("dataflow", "operators", "ako_jobs")
BASE = (
    *("compiled", "errors", "clock", "message", "state", "operators_api", "ports", "node_context", "quantities"),
    *("plain", "home", "reports", "artifact_names"),
)
ENGINE = {"base", "graph", "plan", "engine"}
BELOW_TESTING = {*ENGINE, "transport", "observe", "runtime", "sim"}

ALLOWED: dict[str, set[str]] = {
    "base": {"base"},
    "graph": {"base", "graph"},
    "plan": {"base", "graph", "plan"},
    "engine": ENGINE,
    "transport": {"base", "transport"},
    "observe": {"base", "graph", "plan", "observe"},
    "runtime": {*ENGINE, "transport", "observe", "runtime"},
    "sim": {*ENGINE, "transport.base", "observe", "sim"},
    "lab": {"base", "observe", "runtime", "lab"},
    "testing": {*BELOW_TESTING, "testing"},
    "public": {*BELOW_TESTING, "testing"},
    "operators": {"base", "operators"},
    "ako_jobs": {"base", "graph", "operators", "public", "ako_jobs"},
    "cli": {*BELOW_TESTING, "lab", "testing", "public", "cli", "operators", "ako_jobs"},
}
"""Layers that the modules of a layer may import. `public` is the package `dataflow` itself, its public API."""

ONLY_IN = {
    "grpc": {"transport", "runtime"},
    "grpc_health": {"transport", "runtime"},
    "prometheus_client": {"runtime"},
    "torch": {"operators"},
    "matplotlib": {"ako_jobs"},
}
"""Other packages that only some layers may import."""

FORBIDDEN = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill"}
SHADOWING = {"operator", "queue", "grpc"}

NEVER_REACHED = {
    "dataflow.runtime.agent": {"numpy", "networkx", "operators", "ako_jobs"},
    "dataflow.runtime.master": {"networkx", "operators", "ako_jobs"},
    "operators.dnn": {"torch"},
    "ako_jobs.jobs": {"torch", "networkx"},
    "ako_jobs.ako": {"torch", "networkx"},
    "ako_jobs.predict": {"torch"},
    "dataflow.cli.compare": {"torch", "matplotlib"},
}
"""Packages that a module must not import, not even through others."""


@dataclass(frozen=True)
class Import:
    """One import statement's module: absolute name, whether it runs (else only type checkers see it), and line."""

    name: str
    runs: bool
    in_function: bool
    line: int


def modules(root: Path) -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(root: Path) -> dict[str, list[Import]]:
    """What every module of ours imports; ``from package import module`` names the module."""
    known = modules(root)
    found = {}
    for name, path in known.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        found[name] = [
            Import(target, runs, in_function, node.lineno)
            for node, runs, in_function in _statements(tree, runs=True, in_function=False)
            for target in _targets(node, package, known)
        ]
    return found


def _statements(
    tree: ast.AST, *, runs: bool, in_function: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, runs, in_function
            continue
        inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from _statements(ast.Module(node.body, []), runs=False, in_function=inside)
            yield from _statements(ast.Module(node.orelse, []), runs=runs, in_function=inside)
        else:
            yield from _statements(node, runs=runs, in_function=inside)


def _targets(node: ast.Import | ast.ImportFrom, package: str, known: dict[str, Path]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    above = package.rsplit(".", node.level - 1)[0] if node.level else ""
    origin = ".".join(filter(None, (above, node.module)))
    inner = [f"{origin}.{alias.name}" for alias in node.names]
    return sorted({name if name in known else origin for name in inner})


def layer(module: str) -> str:
    """The layer of one of our modules; the top-level package's name for others."""
    parts = module.split(".")
    if parts[0] != "dataflow":
        return parts[0]
    if len(parts) == 1:
        return "public"
    return "base" if parts[1] in BASE else parts[1]


def _permitted(source: str, target: str) -> bool:
    allowed = ALLOWED.get(layer(source), set())
    return layer(target) in allowed or target.removeprefix("dataflow.") in allowed


def layer_violations(root: Path) -> list[str]:
    """Imports that go up or across the layers, or of packages reserved to other layers."""
    found = []
    for module, targets in imports(root).items():
        if layer(module) not in ALLOWED:
            found.append(f"{module} belongs to no layer")
        for target in targets:
            package = target.name.split(".")[0]
            reserved = ONLY_IN.get(package)
            if (package in PACKAGES and not _permitted(module, target.name)) or (
                reserved and layer(module) not in reserved
            ):
                found.append(f"{module}:{target.line} imports {target.name}")
    return found


def cycles(root: Path) -> list[str]:
    """Modules that import each other, imports for type checkers counted."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for module, targets in imports(root).items():
        graph.add_edges_from((module, target.name) for target in targets if target.name.split(".")[0] in PACKAGES)
    knots = [" ".join(sorted(knot)) for knot in nx.strongly_connected_components(graph) if len(knot) > 1]
    return knots + list(nx.nodes_with_selfloops(graph))


def hidden_imports(root: Path) -> list[str]:
    """Import statements inside functions."""
    return [
        f"{module}:{target.line} imports {target.name}"
        for module, targets in imports(root).items()
        for target in targets
        if target.in_function
    ]


def forbidden_imports(root: Path) -> list[str]:
    """Imports of pickle and its kin."""
    return [
        f"{module}:{target.line} imports {target.name}"
        for module, targets in imports(root).items()
        for target in targets
        if target.name.split(".")[0] in FORBIDDEN
    ]


def shadowing_modules(root: Path) -> list[str]:
    """Modules whose names hide a module that others need when their folder is on the path."""
    return [name for name in modules(root) if "." in name and name.rpartition(".")[2] in SHADOWING]


def reached(root: Path, module: str) -> dict[str, str]:
    """Every module that importing `module` loads, with the one that imports it; packages load before their parts."""
    known = imports(root)
    found: dict[str, str] = {}
    waiting = [(module, "")]
    while waiting:
        name, by = waiting.pop()
        parents = [name.rsplit(".", depth)[0] for depth in range(name.count(".") + 1)]
        for loaded in parents:
            if loaded not in found:
                found[loaded] = by
                waiting += [(target.name, loaded) for target in known.get(loaded, ()) if target.runs]
    return found


def reached_violations(root: Path) -> list[str]:
    """What the agent and the master load although they must not, with the way there."""
    known = modules(root)
    found = []
    for module, banned in NEVER_REACHED.items():
        loaded = reached(root, module) if module in known else {}
        for name in sorted(banned & loaded.keys()):
            way = [name]
            while way[-1] != module and loaded[way[-1]]:
                way.append(loaded[way[-1]])
            found.append(f"{module} loads {name}: {' <- '.join(way)}")
    return found


def test_layers_of_this_tree_are_kept() -> None:
    assert layer_violations(ROOT) == []


def test_modules_of_this_tree_form_no_cycle() -> None:
    assert cycles(ROOT) == []


def test_imports_of_this_tree_stand_outside_functions() -> None:
    assert hidden_imports(ROOT) == []


def test_pickle_is_not_imported_in_this_tree() -> None:
    assert forbidden_imports(ROOT) == []


def test_modules_of_this_tree_shadow_no_other() -> None:
    assert shadowing_modules(ROOT) == []


def test_agent_and_master_of_this_tree_load_no_user_code() -> None:
    assert reached_violations(ROOT) == []


def unlisted_packages(root: Path) -> list[str]:
    """Folders with modules that an installation would lack, and names in its list that are no such folders."""
    listed = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    folders = {path.parent for package in PACKAGES for path in (root / package).rglob("*.py")}
    return sorted({".".join(folder.relative_to(root).parts) for folder in folders} ^ set(listed))


def test_packages_of_this_tree_are_all_installed() -> None:
    assert unlisted_packages(ROOT) == []


def test_unlisted_packages_new_folder_and_stale_name_are_found(tmp_path: Path) -> None:
    listed = '[tool.setuptools]\npackages = ["dataflow", "dataflow.gone", "operators"]\n'
    files = {"pyproject.toml": listed, "dataflow/a.py": "", "operators/a.py": "", "operators/rules/a.py": ""}
    assert unlisted_packages(tree(tmp_path, files)) == ["dataflow.gone", "operators.rules"]


def test_checker_sees_this_tree() -> None:
    assert {"dataflow", "dataflow.graph.logical", "operators", "ako_jobs"} <= modules(ROOT).keys()
    assert "dataflow.errors" in [target.name for target in imports(ROOT)["dataflow.graph.logical"]]


def tree(folder: Path, files: dict[str, str]) -> Path:
    """A small source tree with these files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("path", "statement"),
    [
        ("dataflow/errors.py", "import dataflow.graph.logical"),
        ("dataflow/graph/a.py", "from dataflow.plan import physical"),
        ("dataflow/graph/a.py", "from ..plan.physical import Plan"),
        ("dataflow/plan/a.py", "import dataflow.engine.flow as flow"),
        ("dataflow/engine/a.py", "from dataflow.transport.base import Transport"),
        ("dataflow/transport/a.py", "from dataflow.graph.logical import Edge"),
        ("dataflow/observe/a.py", "from dataflow.engine.flow import Flow"),
        ("dataflow/runtime/a.py", "from dataflow.sim.clock import VirtualClock"),
        ("dataflow/runtime/a.py", "from dataflow.testing.harness import Harness"),
        ("dataflow/sim/a.py", "from dataflow.runtime.pools import Pool"),
        ("dataflow/sim/a.py", "from dataflow.transport.memory import Memory"),
        ("dataflow/testing/a.py", "from dataflow.cli.main import main"),
        ("dataflow/testing/a.py", "from operators.send import Send"),
        ("dataflow/runtime/a.py", "import operators"),
        ("dataflow/engine/a.py", "from ako_jobs import ako"),
        ("dataflow/engine/a.py", "from dataflow import LogicalGraph"),
        ("dataflow/engine/a.py", "import grpc"),
        ("dataflow/cli/a.py", "from grpc import aio"),
        ("dataflow/__init__.py", "from operators.send import Send"),
        ("operators/a.py", "from dataflow import Operator"),
        ("operators/a.py", "from dataflow.graph.logical import Edge"),
        ("operators/a.py", "from ako_jobs.models import Model"),
        ("ako_jobs/a.py", "from dataflow.plan.compile import compile_graph"),
        (
            "dataflow/graph/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import dataflow.plan.compile",
        ),
    ],
)
def test_layer_violations_import_upwards_is_found(tmp_path: Path, path: str, statement: str) -> None:
    (violation,) = layer_violations(tree(tmp_path, {path: statement}))
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    assert violation.startswith(f"{module}:{statement.count(chr(10)) + 1} imports ")


@pytest.mark.parametrize(
    ("path", "statement"),
    [
        ("dataflow/errors.py", "import difflib"),
        ("dataflow/graph/a.py", "from dataflow.errors import GraphError"),
        ("dataflow/transport/a.py", "import grpc"),
        ("dataflow/runtime/a.py", "from dataflow.transport.memory import Memory\nfrom dataflow.graph import logical"),
        ("dataflow/sim/a.py", "from dataflow.transport.base import Transport\nfrom dataflow.transport import base"),
        ("dataflow/testing/a.py", "from dataflow.sim.clock import VirtualClock"),
        ("dataflow/__init__.py", "from dataflow.graph.logical import LogicalGraph"),
        ("operators/dnn/a.py", "from operators.send import Send\nfrom dataflow.node_context import NodeContext"),
        ("ako_jobs/a.py", "from dataflow import LogicalGraph\nfrom operators import send"),
        ("dataflow/cli/a.py", "from ako_jobs import ako\nfrom dataflow import Operator\nimport dataflow.sim.clock"),
    ],
)
def test_layer_violations_import_downwards_is_accepted(tmp_path: Path, path: str, statement: str) -> None:
    assert layer_violations(tree(tmp_path, {path: statement, "dataflow/transport/base.py": ""})) == []


def test_layer_violations_module_of_no_layer_is_found(tmp_path: Path) -> None:
    assert layer_violations(tree(tmp_path, {"dataflow/helpers.py": ""})) == ["dataflow.helpers belongs to no layer"]


def test_cycles_through_type_checking_are_found(tmp_path: Path) -> None:
    files = {
        "dataflow/graph/a.py": "from dataflow.graph import b",
        "dataflow/graph/b.py": "import typing\nif typing.TYPE_CHECKING:\n    from dataflow.graph.a import A",
        "dataflow/graph/c.py": "from dataflow.graph import a, b",
    }
    assert cycles(tree(tmp_path, files)) == ["dataflow.graph.a dataflow.graph.b"]


def test_hidden_imports_at_any_depth_are_found(tmp_path: Path) -> None:
    text = (
        "import os\nclass A:\n    import re\n    def f(self):\n        if self:\n            from json import loads\n"
    )
    assert hidden_imports(tree(tmp_path, {"operators/a.py": text})) == ["operators.a:6 imports json"]


@pytest.mark.parametrize(
    "statement", ["import pickle", "from pickle import loads", "import os, dill", "import _pickle"]
)
def test_forbidden_imports_of_pickle_are_found(tmp_path: Path, statement: str) -> None:
    assert len(forbidden_imports(tree(tmp_path, {"operators/a.py": statement}))) == 1


def test_shadowing_modules_and_packages_are_found(tmp_path: Path) -> None:
    files = dict.fromkeys(("dataflow/engine/queue.py", "dataflow/grpc/__init__.py", "operators/operator.py"), "")
    assert shadowing_modules(tree(tmp_path, files)) == ["dataflow.engine.queue", "dataflow.grpc", "operators.operator"]


def test_reached_numpy_behind_the_package_is_found_with_the_way(tmp_path: Path) -> None:
    files = {
        "dataflow/__init__.py": "",
        "dataflow/runtime/agent.py": "from dataflow.runtime import hosts",
        "dataflow/runtime/hosts.py": "from dataflow.message import nbytes",
        "dataflow/message.py": "import numpy as np",
    }
    assert reached_violations(tree(tmp_path, files)) == [
        "dataflow.runtime.agent loads numpy: "
        "numpy <- dataflow.message <- dataflow.runtime.hosts <- dataflow.runtime.agent"
    ]


def test_reached_through_a_parent_package_is_found(tmp_path: Path) -> None:
    files = {
        "dataflow/__init__.py": "from dataflow.message import Message",
        "dataflow/runtime/agent.py": "",
        "dataflow/message.py": "import numpy.random",
    }
    assert reached_violations(tree(tmp_path, files)) == [
        "dataflow.runtime.agent loads numpy: numpy <- dataflow.message <- dataflow"
    ]


def test_reached_for_type_checkers_only_is_accepted(tmp_path: Path) -> None:
    files = {
        "dataflow/runtime/agent.py": "if TYPE_CHECKING:\n    import numpy\nelse:\n    import json",
        "dataflow/runtime/master.py": "import numpy",
    }
    root = tree(tmp_path, files)
    assert reached_violations(root) == []
    assert "json" in reached(root, "dataflow.runtime.agent")


def test_reached_user_code_behind_the_master_is_found(tmp_path: Path) -> None:
    files = {
        "dataflow/runtime/master.py": "from dataflow.runtime.jobs import run",
        "dataflow/runtime/jobs.py": "from ako_jobs.ako import build",
    }
    assert reached_violations(tree(tmp_path, files)) == [
        "dataflow.runtime.master loads ako_jobs: ako_jobs <- dataflow.runtime.jobs <- dataflow.runtime.master"
    ]
