"""``ako doctor``: is this machine fit to run jobs?"""

from __future__ import annotations

import os
import platform
import resource
import socket
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

import typer

from ako_jobs.datasets import NAMES, load
from dataflow import compiled
from dataflow.cli.common import JsonFlag, StateDirOption, examples, print_json, verbs
from dataflow.errors import DataError, MasterError
from dataflow.runtime.control_groups import cpu_share, usable_cores
from dataflow.runtime.starting import ONE_THREAD
from dataflow.runtime.state_dir import DEFAULT_ADDRESS, default_state_dir, read_endpoint

app = verbs()

_FILES = 1024


@dataclass(frozen=True)
class Finding:
    """What was looked at, how it is, and what to do about it."""

    name: str
    state: Literal["ok", "warning", "failed"]
    found: str
    fix: str = ""


@app.command(epilog=examples("ako doctor", "ako doctor --state-dir /srv/ako"))
def doctor(state_dir: StateDirOption = None, json: JsonFlag = False) -> None:
    """Check this machine: Python, packages, cores, threads, caches, the port, data and limits.

    Exit code 1 if something failed; warnings are no failure.
    """
    folder = state_dir or default_state_dir()
    findings = [
        _python(),
        *_packages(),
        _engine(),
        _cores(),
        _blas_threads(),
        _kernel_cache(),
        _writable("state directory", folder, "name another with --state-dir or $AKO_STATE_DIR"),
        _port(folder),
        *_data(),
        _open_files(),
    ]
    if json:
        print_json(findings)
    else:
        for each in findings:
            print(f"{each.state:8}{each.name}: {each.found}" + (f"; {each.fix}" if each.fix else ""))
    if any(each.state == "failed" for each in findings):
        raise typer.Exit(1)


def _python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()} at {sys.executable}")


def _packages() -> list[Finding]:
    needed = [line for line in requires("ako-dataflow") or () if "extra ==" not in line]
    findings = []
    for line in needed:
        name = line.split(">=")[0].strip()
        try:
            findings.append(Finding(f"package {name}", "ok", version(name)))
        except PackageNotFoundError:
            findings.append(Finding(f"package {name}", "failed", "not installed", f"pip install '{line}'"))
    return findings


def _engine() -> Finding:
    form = compiled.form()
    if form.compiled:
        return Finding("engine", "ok", "compiled")
    return Finding("engine", "warning", f"interpreted: {form.why}", form.fix)


def _cores() -> Finding:
    cores, share = usable_cores(), cpu_share()
    found = f"{cores} of {os.cpu_count()}"
    if share is not None:
        found += f"; control groups leave this process {share:g} processors' time"
    if cores == 1:
        return Finding("cores", "warning", found, "several nodes on this machine will take turns")
    return Finding("cores", "ok", found)


def _blas_threads() -> Finding:
    found = ", ".join(f"{name}={os.environ.get(name, '')}" for name in ONE_THREAD)
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        return Finding("BLAS threads", "warning", found, "start the program as `ako`")
    return Finding("BLAS threads", "ok", found)


def _kernel_cache() -> Finding:
    named = os.environ.get("NUMBA_CACHE_DIR", "")
    folder = Path(named) if named else Path(__file__).parents[2] / "operators" / "dnn" / "kernels" / "__pycache__"
    finding = _writable("kernel cache", folder, "numba will use one of the user's; NUMBA_CACHE_DIR names another")
    return Finding(finding.name, "warning", finding.found, finding.fix) if finding.state == "failed" else finding


def _writable(name: str, folder: Path, fix: str) -> Finding:
    """Whether files can be made in a folder, or in the nearest one above it that exists."""
    try:
        there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=there):
            return Finding(name, "ok", f"{folder} is writable")
    except OSError as error:
        return Finding(name, "failed", f"{folder} is not writable: {error}", fix)


def _port(state_dir: Path) -> Finding:
    try:
        running = read_endpoint(state_dir)
    except MasterError as error:
        return Finding("port", "warning", f"{error.what}: {error.where}", error.fix)
    host, _, port = DEFAULT_ADDRESS.rpartition(":")
    with socket.socket() as probe:
        # As the master does: a port whose last connections linger is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            fix = f"this directory's master was last on {running}" if running else "give the master another --port"
            return Finding("port", "warning", f"{DEFAULT_ADDRESS} is in use", fix)
    return Finding("port", "ok", f"{DEFAULT_ADDRESS} is free")


def _data() -> list[Finding]:
    findings = []
    for name in NAMES:
        try:
            images = len(load(name).train_images)
            findings.append(Finding(f"data {name}", "ok", f"{images:,} training images"))
        except DataError as error:
            state: Literal["warning", "failed"] = "failed" if name == "digits" else "warning"
            where = f" at {error.where}" if error.where else ""
            findings.append(Finding(f"data {name}", state, error.what + where, error.fix))
    return findings


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft} at once, {hard} at most"
    if soft < _FILES:
        return Finding("open files", "warning", found, f"ulimit -n {_FILES}")
    return Finding("open files", "ok", found)
