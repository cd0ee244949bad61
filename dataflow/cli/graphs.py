"""``ako check`` and ``ako plan``: look at a job without running it."""

from __future__ import annotations

import importlib
from enum import StrEnum
from types import ModuleType
from typing import Annotated

import typer

from ako_jobs.job_settings import job_settings
from ako_jobs.jobs import Job, load_job, prepare
from dataflow.cli.common import (
    JobArgument,
    JsonFlag,
    NodesOption,
    SettingsArgument,
    examples,
    note,
    parse_settings,
    print_json,
    print_table,
    verbs,
)
from dataflow.errors import ConfigError
from dataflow.plan.compile import compile_graph
from dataflow.plan.render import plan_dot, plan_mermaid, plan_text
from dataflow.quantities import bytes_per_second

app = verbs()


class PlanFormat(StrEnum):
    """How a plan is shown."""

    TEXT = "text"
    MERMAID = "mermaid"
    DOT = "dot"
    JSON = "json"


@app.command(
    epilog=examples(
        "ako check ako --settings",
        "ako check my_job.py radius=2 --nodes 3",
        "ako check tree topology=star epochs=0.2 --audit",
    )
)
def check(
    job: JobArgument,
    settings: SettingsArgument = None,
    nodes: NodesOption = 4,
    list_settings: Annotated[bool, typer.Option("--settings", help="List the job's settings instead.")] = False,
    audited: Annotated[
        bool,
        typer.Option(
            "--audit", help="Run a tree job here, in one process, and prove that all nodes end with all updates."
        ),
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Check a job without running it: settings, data, graph, and whether it fits the nodes."""
    loaded = load_job(job)
    if list_settings:
        _list_settings(loaded, as_json=json)
        return
    spec = prepare(loaded, parse_settings(settings), nodes).spec
    graph = spec.graph
    streams = sum(edge.route is not None for edge in graph.edges)
    if audited:
        _trees().show_audit(spec, as_json=json)
        return
    if json:
        print_json(
            {
                "name": spec.name,
                "nodes": nodes,
                "operators": [operator.id for operator in graph.operators],
                "state_elements": [element.name for element in graph.elements],
                "streams": streams,
                "config": spec.config,
                "warnings": spec.warnings,
            }
        )
        return
    print(
        f"{spec.name} is sound on {nodes} nodes: {len(graph.operators)} operators, "
        f"{len(graph.elements)} state elements, {streams} streams"
    )
    for warning in spec.warnings:
        note(warning)


@app.command(
    epilog=examples(
        "ako plan ako --nodes 8",
        "ako plan parameter_server servers=2 --format mermaid",
        "ako plan all_to_all --format dot | dot -Tsvg > plan.svg",
        "ako plan tree --nodes 64 --rate 1gbit",
    )
)
def plan(
    job: JobArgument,
    settings: SettingsArgument = None,
    nodes: NodesOption = 4,
    form: Annotated[PlanFormat, typer.Option("--format", "-f", help="How to show it.")] = PlanFormat.TEXT,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    rate: Annotated[
        str,
        typer.Option(
            metavar="RATE", help="Of the job tree: compare topologies, for links of this rate, such as 1gbit."
        ),
    ] = "",
) -> None:
    """Show what of a job would run where."""
    if json and form not in (PlanFormat.TEXT, PlanFormat.JSON):
        raise ConfigError(what="--json and another --format do not go together", got=form.value, fix="leave out one")
    if rate and form not in (PlanFormat.TEXT, PlanFormat.JSON):
        what, fix = "with --rate there is a table or JSON", "leave out --format, or write --format json"
        raise ConfigError(what, got=form.value, fix=fix)
    json |= form is PlanFormat.JSON
    spec = prepare(load_job(job), parse_settings(settings), nodes).spec
    if rate:
        _trees().show_topologies(spec, bytes_per_second(rate), as_json=json)
        return
    physical = compile_graph(spec.graph, nodes, seed=spec.seed)
    if json:
        print_json(physical.model_dump(mode="json"))
        return
    render = {PlanFormat.TEXT: plan_text, PlanFormat.MERMAID: plan_mermaid, PlanFormat.DOT: plan_dot}[form]
    print(render(physical).rstrip("\n"))


def _trees() -> ModuleType:
    """What is said of tree jobs alone, for which other jobs need import nothing."""
    return importlib.import_module("dataflow.cli.trees")


def _list_settings(job: Job, *, as_json: bool) -> None:
    settings = job_settings(job.config)
    if as_json:
        print_json(settings)
        return
    print_table(
        ("SETTING", "DEFAULT", "VALUES", "MEANING"),
        [
            (each.key, "(required)" if each.required else _written(each.default), each.values, each.meaning)
            for each in settings
        ],
    )


def _written(default: object) -> object:
    """A default as a user would write it."""
    if isinstance(default, bool):
        return str(default).lower()
    return "none" if default is None else default
