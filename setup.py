"""What pyproject.toml cannot say: the engine, ports and the simulator are compiled when the package is installed.

Where they cannot be compiled they run as they are. See docs/decisions/0018-the-engine-is-compiled.md.
"""

from __future__ import annotations

import ast
import logging
import runpy
import shutil
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_ext import build_ext

COMPILED = {
    ".": "ports",
    "engine": "chain chain_state elements events flow inbox inputs leaving membership moment needs news node_engine"
    " read_ahead recording starting tally traffic turns wiring",
    "sim": "clock cores costs lives machine messages meter network pace processors simulator",
}
"""The compiled modules, by package in `dataflow`."""

LIBRARIES = {"engine": (".", "engine"), "sim": ("sim",)}
"""What they are compiled to, of which packages: two libraries take two processors two thirds as long as one does."""

MYPY = ("--config-file=", "--no-site-packages", "--ignore-missing-imports")
"""Only sources of the package are looked at: the build needs nothing that these import, and is the same everywhere."""

OPTIMIZATION = "1"
"""Of the C compiler; 2 and 3 take up to twice as long, and the result is no faster."""


class Package(Distribution):
    """A distribution for one platform, although it declares no extension modules."""

    def has_ext_modules(self) -> bool:
        """As wheels have to know."""
        return True


class CompileEngine(build_ext):
    """Compiles modules into a folder of their own; fails never, but notes there why it could not."""

    def run(self) -> None:
        """Build from scratch."""
        compiled = runpy.run_path("dataflow/compiled.py")
        groups = [
            ([source for package in packages for source in in_package(package)], f"dataflow.compiled_{library}")
            for library, packages in LIBRARIES.items()
        ]
        sources = [source for group, _name in groups for source in group]
        folder = Path("" if self.inplace else self.build_lib, "dataflow", compiled["FOLDER"])
        shutil.rmtree(folder, ignore_errors=True)
        failure = ""
        try:
            build(groups, folder)
        except (Exception, SystemExit) as error:
            shutil.rmtree(folder, ignore_errors=True)
            failure = "mypyc refuses a source" if isinstance(error, SystemExit) else str(error)
            logging.getLogger(__name__).warning("the engine is not compiled, and will run as it is: %s", failure)
        folder.mkdir(parents=True, exist_ok=True)
        compiled["note"](folder, [path.removeprefix("dataflow/") for path in reached(sources)], failure)


def in_package(package: str) -> list[str]:
    """The sources in a package of `dataflow` that are compiled."""
    return [str(Path("dataflow", package, f"{name}.py")) for name in COMPILED[package].split()]


def build(groups: list[tuple[list[str], str]], folder: Path) -> None:
    """Compile sources into a tree like theirs, each group of them to one library."""
    from mypyc.build import mypycify  # noqa: PLC0415 - the package is to be installed where there is none

    with tempfile.TemporaryDirectory() as temporary:
        modules = mypycify(
            [*MYPY, f"--cache-dir={temporary}/cache", *(source for group, _name in groups for source in group)],
            opt_level=OPTIMIZATION,
            debug_level="0",
            target_dir=temporary,
            separate=groups,
        )
        command = build_ext(Distribution({"ext_modules": modules}))
        command.build_lib, command.build_temp, command.parallel = str(folder), temporary, True
        command.ensure_finalized()
        command.run()


def reached(sources: list[str]) -> list[str]:
    """These sources, and those that they import, whose types are compiled into them."""
    found: set[str] = set()
    left = list(sources)
    while left:
        path = left.pop()
        if path in found or not Path(path).is_file():
            continue
        found.add(path)
        for node in ast.walk(ast.parse(Path(path).read_bytes())):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)]
                left += [f"{name.replace('.', '/')}.py" for name in names]
    return sorted(path for path in found if path.startswith("dataflow/"))


setup(distclass=Package, cmdclass={"build_ext": CompileEngine})
