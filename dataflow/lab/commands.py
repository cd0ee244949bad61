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
from dataflow.lab.plan import NETEM, Command, LabPlan, probe_commands

_PACKAGES = {"ip": "iproute2", "tc": "iproute2", "bridge": "iproute2", "setsid": "util-linux", "unshare": "util-linux"}


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


def fit(plan: LabPlan) -> LabPlan:
    """The lab as this machine's kernel can make it: with relays if packets are delayed and it has no netem.

    Raises:
        LabError: it cannot make it, and for want of what; tried out in namespaces that are gone afterwards.
    """
    missing = {name for name, command in probe_commands(plan).items() if not _succeeds(command)}
    if missing - {NETEM}:
        lacking = ", ".join(sorted(missing - {NETEM}))
        raise LabError(what=f"a lab cannot be made here; missing in the kernel, or not allowed: {lacking}")
    return plan.model_copy(update={"relayed": NETEM in missing})


def _succeeds(command: Command) -> bool:
    try:
        run(command)
    except LabError:
        return False
    return True
