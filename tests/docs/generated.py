"""The parts of pages that are made from the code. ``python -m tests.docs.generated`` writes them anew.

A part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from ako_jobs import ako, all_to_all, parameter_server, sparse, tree
from ako_jobs.config import TrainingConfig
from ako_jobs.job_settings import job_settings
from ako_jobs.jobs import load_job, prepare
from dataflow.cli.main import VERBS
from dataflow.engine.job_life import transition_diagram
from dataflow.graph.render import as_mermaid
from dataflow.plan.compile import compile_graph
from dataflow.plan.render import plan_text
from tests.docs.pages import PAGES, ROOT
from tests.test_imports import PACKAGES, imports, layer

PART = re.compile(r"<!-- generated: (\S+) -->\n(.*?)<!-- end -->\n", re.DOTALL)


def render(name: str) -> str:
    """The part called `name`, as it must stand in the page."""
    kind, _, detail = name.partition(":")
    return f"\n{_MAKERS[kind](detail)}\n\n"


def parts(page: Path) -> Iterator[tuple[str, str]]:
    """Names and texts of the generated parts of a page."""
    yield from PART.findall(page.read_text())


def _states(_: str) -> str:
    return _fenced("mermaid", transition_diagram())


def _graph(job: str) -> str:
    return _fenced("mermaid", as_mermaid(prepare(load_job(job), {}, 4).graph))


def _plan(detail: str) -> str:
    job, *settings = detail.split(",")
    graph = prepare(load_job(job), dict(setting.split("=") for setting in settings), 4).graph
    return _fenced("text", plan_text(compile_graph(graph, 4)))


def _settings(job: str) -> str:
    common = {setting.key for setting in job_settings(TrainingConfig)}
    config = {
        "ako": ako,
        "parameter_server": parameter_server,
        "all_to_all": all_to_all,
        "sparse": sparse,
        "tree": tree,
    }
    settings = (
        [setting for setting in job_settings(config[job].Config) if setting.key not in common]
        if job
        else job_settings(TrainingConfig)
    )
    return _table(
        ("key", "default", "values", "meaning"),
        [
            (
                f"`{each.key}`",
                "" if each.default is None else f"`{str(each.default).lower()}`",
                each.values.replace("|", "\\|"),
                each.meaning.rstrip("."),
            )
            for each in settings
        ],
    )


def _layers(_: str) -> str:
    below: dict[str, set[str]] = {}
    for module, targets in imports(ROOT).items():
        found = below.setdefault(layer(module), set())
        found |= {layer(target.name) for target in targets if target.name.split(".")[0] in PACKAGES}
    order = sorted(below, key=lambda name: (len(_below(name, below)), name))
    return _table(
        ("layer", "imports"),
        [(name, ", ".join(other for other in order if other in below[name] - {name})) for name in order],
    )


def _below(name: str, below: dict[str, set[str]]) -> set[str]:
    """Every layer that a layer imports, through others too."""
    found: set[str] = set()
    todo = [name]
    while todo:
        new = below[todo.pop()] - found
        found |= new
        todo += new
    return found - {name}


def _verbs(_: str) -> str:
    return _table(("verb", "what it does"), [(f"`ako {verb}`", line) for verb, (_module, line) in VERBS.items()])


def _options(_: str) -> str:
    sections: list[str] = []
    for verb, (module, _line) in VERBS.items():
        group: Any = typer.main.get_command(importlib.import_module(f"dataflow.cli.{module}").app)
        sections += _describe(f"ako {verb}", group.commands[verb])
    return "\n\n".join(sections)


def _describe(name: str, command: Any) -> Iterator[str]:
    nested = getattr(command, "commands", {})
    if not nested or command.invoke_without_command:
        yield from _describe_one(name, command)
    for verb, inner in nested.items():
        yield from _describe(f"{name} {verb}", inner)


def _describe_one(name: str, command: Any) -> Iterator[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
    words = [each.metavar + ("..." if each.nargs == -1 else "") for each in arguments]
    yield f"### {name}"
    yield f"`{' '.join([name, *words])}`"
    yield " ".join((command.help or "").split("\n\n")[0].split())
    if options:
        yield _table(
            ("option", "meaning"),
            [
                (
                    f"`{', '.join(each.opts)}{f' {each.metavar}' if each.metavar else ''}`",
                    (each.help or "").replace("|", "\\|"),
                )
                for each in options
            ],
        )


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_MAKERS: dict[str, Callable[[str], str]] = {
    "states": _states,
    "graph": _graph,
    "plan": _plan,
    "settings": _settings,
    "layers": _layers,
    "verbs": _verbs,
    "options": _options,
}


def main() -> None:
    """Write every generated part of every page anew."""
    for page in PAGES:
        text = page.read_text()
        fresh = PART.sub(
            lambda part: f"<!-- generated: {part[1]} -->\n{render(part[1])}<!-- end -->\n",
            text,
        )
        if fresh != text:
            page.write_text(fresh)
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
