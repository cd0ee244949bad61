"""Examples in the pages work: Python files run, shell commands fit the command line."""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from ako_jobs.job_settings import job_settings
from ako_jobs.jobs import load_job, prepare
from dataflow.cli.common import parse_settings
from dataflow.cli.main import VERBS
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.plan.compile import compile_graph
from tests.docs.pages import PAGES, ROOT, Block, all_blocks, commands, write_files

SHELL = all_blocks("sh")
PYTHON = all_blocks("python")
JOBS = [(block.page, block.file) for block in PYTHON if block.file and "\ndef build(" in block.text]
PROGRAMS = [(block.page, block.file) for block in PYTHON if block.file and "\ndef main(" in block.text]
SESSIONS = all_blocks("pycon")
QUICK = {"epochs": 0.2, "warm_start": 0}


def _id(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)


@pytest.mark.parametrize(("page", "name"), JOBS, ids=_id)
def test_job_file_in_a_page_runs_in_memory_on_two_nodes(page: Path, name: str, tmp_path: Path) -> None:
    path = write_files(page, tmp_path)[name]
    _require_torch(path)
    job = load_job(str(path))
    known = {setting.key for setting in job_settings(job.config)}
    prepared = prepare(job, {key: value for key, value in QUICK.items() if key in known}, 2)
    run = MemoryDriver(compile_graph(prepared.graph, 2, seed=prepared.spec.seed)).execute()
    assert run.ended == {0, 1}
    assert run.reports


@pytest.mark.parametrize(("page", "name"), PROGRAMS, ids=_id)
def test_program_in_a_page_runs(page: Path, name: str, tmp_path: Path) -> None:
    program = write_files(page, tmp_path)[name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "AKO_STATE_DIR": str(tmp_path / "state")}
    ended = subprocess.run(
        [sys.executable, program.name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout


@pytest.mark.parametrize("block", [block for block in PYTHON if block.file.startswith("test_")], ids=_id)
def test_test_file_in_a_page_passes(block: Block, tmp_path: Path) -> None:
    write_files(block.page, tmp_path)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", block.file],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("block", [block for block in PYTHON if not block.file], ids=_id)
def test_python_without_a_file_name_compiles(block: Block) -> None:
    tree = ast.parse(block.text, str(block))
    compile(tree, str(block), "exec")  # refuses more than the parser does
    assert tree.body


@pytest.mark.parametrize("block", SESSIONS, ids=_id)
def test_session_in_a_page_gives_what_it_shows(block: Block) -> None:
    test = doctest.DocTestParser().get_doctest(block.text, {}, str(block), str(block.page), block.line)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert runner.run(test).failed == 0


@pytest.mark.parametrize("block", SHELL, ids=_id)
def test_shell_commands_of_a_page_fit_the_command_line(block: Block, tmp_path: Path) -> None:
    files = write_files(block.page, tmp_path)
    for words in commands(block.text):
        if Path(words[0]).name != "ako":
            continue
        _, verb, *arguments = words
        if verb.startswith("--"):
            assert verb in ("--help", "--version"), words
            continue
        given = _parse(verb, arguments)
        job = given.get("job")
        if verb in ("run", "submit", "check", "plan"):
            place, colon, function = str(job).partition(":")
            job = (
                f"{files[place]}{colon}{function}"
                if place in files
                else str(job).replace("examples/", f"{ROOT}/examples/")
            )
            _require_torch(Path(job.partition(":")[0]))
            load_job(job).config.parse(parse_settings(given["settings"]))


def _require_torch(job: Path) -> None:
    """Skip where PyTorch is missing and the job file needs it."""
    if job.is_file() and re.search(r"^(from|import) torch\b", job.read_text(), re.MULTILINE):
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ako-dataflow[torch]'")


def _parse(verb: str, arguments: list[str]) -> dict[str, object]:
    """What the verb would be called with; fails where the verb would refuse it."""
    command: Any = typer.main.get_command(importlib.import_module(f"dataflow.cli.{VERBS[verb][0]}").app)
    command = command.commands[verb]
    while getattr(command, "commands", None) and not (command.invoke_without_command and _has_no_verb(arguments)):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    return dict(command.make_context(verb, arguments).params)


def _has_no_verb(arguments: list[str]) -> bool:
    return not arguments or arguments[0].startswith("--")


def test_pages_show_what_every_verb_is_good_for() -> None:
    shown = {
        words[1]
        for block in SHELL
        for words in commands(block.text)
        if Path(words[0]).name == "ako" and not words[1].startswith("--")
    }
    assert shown == set(VERBS)
    assert ROOT / "docs" / "cli.md" in PAGES
