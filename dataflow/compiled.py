"""Which form of the engine runs: modules that mypyc compiled when the package was installed, or their sources.

Invariant: Python by itself finds the sources only. Compiled modules are in a folder of their own, and found there only
if every source that they were compiled from, or against, is the same as then, byte for byte.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import source_hash, spec_from_file_location
from typing import NamedTuple

SWITCH = "AKO_INTERPRETED"
"""Environment variable; if it is set to anything, sources run."""

FOLDER = "__compiled__"
"""Folder in the package `dataflow` with the compiled modules, in a tree like that of their sources, and a manifest."""

_PACKAGE = os.path.dirname(__file__)
_MANIFEST = "manifest"
_INSTALL = "install the package again (in a checkout: pip install -e .)"


class Form(NamedTuple):
    """What runs in this process.

    Args:
        compiled: whether the engine is compiled.
        why: it is not.
        fix: what to do about that.
    """

    compiled: bool
    why: str = ""
    fix: str = ""


def use() -> None:
    """Have compiled modules imported from now on, if they may be."""
    if form().compiled:
        sys.meta_path.insert(0, _Finder(os.path.join(_PACKAGE, FOLDER)))


def form() -> Form:
    """Whether the engine may run compiled, and why not. Takes under 1 ms."""
    if os.environ.get(SWITCH):
        return Form(compiled=False, why=f"{SWITCH} is set", fix=f"unset {SWITCH}")
    try:
        with open(os.path.join(_PACKAGE, FOLDER, _MANIFEST), encoding="utf-8") as file:
            built_for, failure, *sources = file.read().splitlines()
    except (OSError, ValueError):
        return Form(compiled=False, why="it has not been compiled here", fix=_INSTALL)
    if failure:
        return Form(compiled=False, why=f"it could not be compiled: {failure}", fix=f"mend that, and {_INSTALL}")
    if built_for != EXTENSION_SUFFIXES[0]:
        return Form(compiled=False, why=f"it was compiled for another Python, {built_for}", fix=_INSTALL)
    for line in sources:
        digest, _, source = line.partition(" ")
        if digest != _digest(source):
            return Form(compiled=False, why=f"dataflow/{source} has changed since it was compiled", fix=_INSTALL)
    return Form(compiled=True)


def note(folder: str, sources: Iterable[str], failure: str) -> None:
    """Write the manifest of a build.

    Args:
        folder: where the compiled modules are.
        sources: files that they were compiled from or against, relative to the package `dataflow`.
        failure: why there are no compiled modules; empty if there are.
    """
    digests = [f"{_digest(source)} {source}" for source in sources]
    with open(os.path.join(folder, _MANIFEST), "w", encoding="utf-8") as file:
        file.write("\n".join([EXTENSION_SUFFIXES[0], " ".join(failure.split()), *digests]) + "\n")


def _digest(source: str) -> str:
    """By which Python, too, knows sources: that of hash-based ``.pyc`` files."""
    try:
        with open(os.path.join(_PACKAGE, source), "rb") as file:
            return source_hash(file.read()).hex()
    except OSError:
        return "missing"


class _Finder:
    """Finds compiled modules ahead of their sources."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """As `sys.meta_path` wants it; None for what is not compiled."""
        if not name.startswith("dataflow."):
            return None
        file = os.path.join(self._folder, name.replace(".", os.sep) + EXTENSION_SUFFIXES[0])
        return spec_from_file_location(name, file) if os.path.isfile(file) else None
