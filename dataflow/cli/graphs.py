"""``ako check`` and ``ako plan``: look at a job without running it."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from ako_jobs.audit import audit
from ako_jobs.job_settings import job_settings
from ako_jobs.jobs import Job, load_job, prepare
from ako_jobs.tree_plan import Costs, compare, measured_update_s
from dataflow import ClusterModel, JobSpec, SystemClock, measure_connection
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
from dataflow.quantities import bytes_per_second, duration
from operators.shared_replica import SharedReplica

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
        _audit(spec, as_json=json)
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
    spec = prepare(load_job(job), parse_settings(settings), nodes).spec
    if rate:
        _compare_topologies(spec, bytes_per_second(rate), as_json=json)
        return
    physical = compile_graph(spec.graph, nodes, seed=spec.seed)
    if json or form is PlanFormat.JSON:
        print_json(physical.model_dump(mode="json"))
        return
    render = {PlanFormat.TEXT: plan_text, PlanFormat.MERMAID: plan_mermaid, PlanFormat.DOT: plan_dot}[form]
    print(render(physical).rstrip("\n"))


def _audit(spec: JobSpec, *, as_json: bool) -> None:
    """Show that the nodes of a tree job end with all updates."""
    found = audit(spec)
    if as_json:
        print_json(asdict(found))
        return
    print(
        f"{spec.name} on {spec.nodes} nodes: every node ends with all {sum(found.updates):,} updates; replicas are "
        f"{found.apart:.2g} from their sum at most, and rounding explains {found.allowed:.2g}"
    )


def _compare_topologies(spec: JobSpec, rate: float, *, as_json: bool) -> None:
    """Show what to expect of a tree job with each topology."""
    config = spec.config or {}
    if spec.name != "tree":
        raise ConfigError(what="topologies are compared for the job tree", got=spec.name, fix="leave out --rate")
    shared = next(element for element in spec.graph.elements if element.name == "replica")
    n_weights = SharedReplica.model_validate_json(shared.params).layout.n_weights
    nbytes, clock = 4 * n_weights, SystemClock()
    message_s, byte_s = measure_connection(nbytes)
    costs = Costs(
        update_s=measured_update_s(n_weights, clock.now) + message_s + byte_s * nbytes,
        hop_s=nbytes / rate + ClusterModel().latency_s,
        link_s=nbytes / rate,
        period_s=duration(str(config["period"])),
    )
    found = compare(spec.nodes, costs)
    if as_json:
        print_json({"costs": asdict(costs), "topologies": [asdict(each) for each in found]})
        return
    print(
        f"{n_weights:,} weights, {nbytes / 1e6:.3g} MB: {1000 * costs.update_s:.3g} ms to make or take in a sum, "
        f"{1000 * costs.hop_s:.3g} ms for a hop; a sum on each edge each way every {config['period']}"
    )
    print_table(
        ("TOPOLOGY", "HOPS", "DEGREE", "DELAY", "NODE", "LINK"),
        [
            (
                each.topology,
                each.hops,
                each.degree,
                f"{each.delay_s:.3g} s",
                f"{each.busy:.1%}",
                f"{each.link:.1%}",
            )
            for each in found
        ],
    )
    best = found[0]
    what = "the shortest delay that no node or link is overloaded with" if best.holds else "the least overload"
    print(f"recommended: topology={best.topology} ({what})")


def _list_settings(job: Job, *, as_json: bool) -> None:
    settings = job_settings(job.config)
    if as_json:
        print_json(settings)
        return
    print_table(
        ("SETTING", "DEFAULT", "VALUES", "MEANING"),
        [
            (
                each.key,
                "(required)" if each.required else "none" if each.default is None else each.default,
                each.values,
                each.meaning,
            )
            for each in settings
        ],
    )
