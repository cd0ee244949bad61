"""Runs the programs that a lab is made with, and finds out what of them, or of the kernel, is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from dataflow.errors import LabError
from dataflow.lab.plan import Command, LabPlan, probe_commands

_PACKAGES = {"ip": "iproute2", "tc": "iproute2", "bridge": "iproute2", "unshare": "util-linux"}


def run(command: Command) -> str:
    """Run a program and return what it prints.

    Raises:
        LabError: it ends with an error, or is not there; with what it says.
    """
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        raise LabError(what=f"{command[0]} cannot be run: {error.strerror}", got=" ".join(command)) from error
    if ended.returncode:
        raise LabError(what=f"{command[0]} says: {' '.join(ended.stderr.split())}", got=" ".join(command))
    return ended.stdout


def run_all(commands: Iterable[Command]) -> None:
    """Run programs one after the other, up to the first that fails."""
    for command in commands:
        run(command)


def run_json(command: Command) -> list[dict[str, Any]]:
    """Run a program that prints a list of objects as JSON; nothing is no objects."""
    said = run(command)
    found: list[dict[str, Any]] = json.loads(said) if said.strip() else []
    return [each for each in found if each]


def require_tools() -> None:
    """Nothing, if this process may make network namespaces and has the programs to do so.

    Raises:
        LabError: with all that is missing.
    """
    missing = [] if sys.platform == "linux" else ["Linux"]
    if os.geteuid() != 0:
        missing.append("root (use sudo)")
    missing += [
        f"{program} (install {package})" for program, package in _PACKAGES.items() if shutil.which(program) is None
    ]
    if missing:
        raise LabError(what=f"a lab cannot be made here; missing: {'; '.join(missing)}")


def require_kernel(plan: LabPlan) -> None:
    """Nothing, if the kernel can make what a lab needs; tried out in a namespace of its own.

    Raises:
        LabError: with what is missing.
    """
    missing = [name for name, command in probe_commands(plan).items() if not _succeeds(command)]
    if missing:
        fix = "leave out --latency" if missing == ["netem"] else ""
        what = f"a lab cannot be made here; missing in the kernel, or not allowed: {', '.join(missing)}"
        raise LabError(what, fix=fix)


def _succeeds(command: Command) -> bool:
    try:
        run(command)
    except LabError:
        return False
    return True
