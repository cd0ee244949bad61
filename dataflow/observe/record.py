"""The record of a run: what was asked for, what came out and what it cost, as one JSON document."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from statistics import fmean

from pydantic import JsonValue

from dataflow.observe.condition import node_name, poisoned
from dataflow.observe.events import JobEvent
from dataflow.observe.series import Point
from dataflow.plain import plain
from dataflow.plan.job import JobSpec
from dataflow.reports import LinkStatistics, NodeStatistics, SampleStatistics, samples_named

FORMAT = 1
"""Version of the document's layout."""

_OF_CHANGES = ("node", "life", "incarnation", "reason")


def make_record(
    spec: JobSpec,
    events: Iterable[JobEvent],
    statistics: Sequence[NodeStatistics],
    versions: Mapping[str, str],
    node_names: Sequence[str] = (),
    *,
    earlier: Sequence[NodeStatistics] = (),
    last_lines: Sequence[str] = (),
    series: Sequence[Point] = (),
    simulation: Mapping[str, JsonValue] | None = None,
) -> dict[str, JsonValue]:
    """The record of a job that has ended.

    Seconds are counted from the moment the job began to run; bytes are those of messages. Numbers that JSON does not
    know (NaN, infinities) become null.

    Args:
        spec: what was submitted.
        events: all that happened to it, in order; see `Client.watch`.
        statistics: the last statistics of every node.
        versions: versions of the programs that took part, by name; see `installed_versions`.
        node_names: names of the nodes, by number.
        earlier: the last of those incarnations of nodes that have died and were started again.
        last_lines: the last that the node which made it fail has printed.
        series: how it went over time.
        simulation: what a simulation assumed; None if the job ran on a cluster.

    Returns:
        ``changes`` holds one entry for each time that a node died, was started again or joined (see `NodeChange`);
        ``adjustments`` one for each step of a change of the running job (see `AdjustmentStep`);
        ``reports`` holds one entry per reported message, with the message's own fields beside ``time_s``, ``node``
        and ``port``; ``totals.images`` is the largest field ``images`` of a report; ``nodes`` has one entry per node,
        about its last incarnation, and ``earlier`` one for each that died before it, all of which are in ``totals``,
        ``links`` and ``series``; ``links`` has one per pair of nodes that exchanged messages, ``series`` one per point
        in time. What a node could not measure is null: a simulated one has no processor, and no links that acknowledge.
        ``master_away`` says from when until when the job had no master.
    """
    reports: list[dict[str, JsonValue]] = []
    warnings: list[JsonValue] = list(spec.warnings)
    away: list[JsonValue] = []
    changes: list[dict[str, JsonValue]] = []
    names: dict[tuple[int, int], str] = {}
    adjustments: list[JsonValue] = []
    last: JobEvent | None = None
    run_s = 0.0
    for event in events:
        run_s = max(run_s, event.elapsed_s)
        if event.state:
            last = event
        if event.warning:
            warnings.append(event.warning)
        if event.master_away is not None:
            for_s = event.master_away[1] - event.master_away[0]
            away.append({"from_s": max(0.0, event.elapsed_s - for_s), "to_s": event.elapsed_s})
        if event.change is not None:
            names[event.change.node, event.change.incarnation] = event.change.name
            change = asdict(event.change)
            changes.append({"time_s": event.elapsed_s, **{name: change[name] for name in _OF_CHANGES}})
        if event.adjustment is not None:
            step = asdict(event.adjustment)
            adjustments.append({"time_s": event.elapsed_s, **step, "touched": list(step["touched"])})
        if event.report is not None:
            said = plain(event.report.fields)
            reports.append({**said, "time_s": event.elapsed_s, "node": event.node, "port": event.report.port})
    by_node = sorted(statistics, key=lambda each: each.node)
    died = sorted(earlier, key=lambda each: (each.node, each.incarnation))
    record: dict[str, JsonValue] = {
        "format": FORMAT,
        "name": spec.name,
        "seed": spec.seed,
        "config": dict(spec.config),
        "stop": spec.stop.model_dump(mode="json"),
        "warnings": warnings,
        "versions": dict(versions),
        "state": last.state if last else "",
        "reason": last.reason if last else "",
        "stopped_by": last.stopped_by if last else "",
        "last_lines": list(last_lines),
        "run_s": run_s,
        "changes": list(changes),
        "adjustments": adjustments,
        "reports": list(reports),
        "totals": _totals([*died, *by_node], reports),
        "nodes": [_node(each, names, node_names) for each in by_node],
        "earlier": [_node(each, names, node_names) for each in died],
        "links": _links([*died, *by_node]),
        "master_away": away,
        "series": [asdict(point) for point in series],
        "simulation": None if simulation is None else dict(simulation),
    }
    return record


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    packages = ("ako-dataflow", "numpy", "numba", "grpcio")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def _totals(statistics: Sequence[NodeStatistics], reports: Sequence[Mapping[str, JsonValue]]) -> JsonValue:
    staleness = _merged(statistics, "staleness")
    stale = {name: _merged(statistics, name) for name in ("lag", "gap", "normalised_gap")}
    ratios = [sample.last for sample in samples_named(statistics, "compression_ratio")]
    counts = [report.get("images") for report in reports]
    return {
        "images": max((count for count in counts if isinstance(count, int)), default=None),
        "gradients": sum(each.steps for each in statistics),
        "tasks": sum(each.tasks for each in statistics),
        "sent_nbytes": sum(sum(each.sent_nbytes.values()) for each in statistics),
        "received_nbytes": sum(sum(each.received_nbytes.values()) for each in statistics),
        "staleness_max": plain(staleness.maximum) if staleness else None,
        "staleness_mean": plain(staleness.total / staleness.count) if staleness else None,
        "compression_ratio": plain(fmean(ratios)) if ratios else None,
        "poisoned": poisoned(statistics),
        **{f"{name}_mean": plain(found.total / found.count) if found else None for name, found in stale.items()},
    }


def _node(statistics: NodeStatistics, names: Mapping[tuple[int, int], str], newest: Sequence[str]) -> JsonValue:
    """An entry of ``nodes``.

    Args:
        statistics: what an incarnation has counted.
        names: what nodes were called then, by number and incarnation, as far as known.
        newest: what they are called at last, by number.
    """
    node, cpu = statistics.node, statistics.processor
    return {
        "node": node,
        "incarnation": statistics.incarnation,
        "name": names.get((node, statistics.incarnation)) or node_name(newest, node),
        "steps": statistics.steps,
        "tasks": statistics.tasks,
        "running_s": statistics.running_s,
        "compute_tasks": statistics.compute_tasks,
        "computing_s": statistics.computing_s,
        "waiting_s": statistics.waiting_s,
        "idle_s": statistics.idle_s,
        "sending_s": statistics.busy_s.get("network", 0.0),
        "cpu_s": cpu.process if cpu else None,
        "compute_cpu_s": cpu.compute if cpu else None,
        "exchange_cpu_s": cpu.exchange if cpu else None,
        "cpu_utilisation": cpu.process / statistics.running_s if cpu and statistics.running_s else None,
        "links_busy_s": statistics.links_busy_s,
        "sent_nbytes": sum(statistics.sent_nbytes.values()),
        "received_nbytes": sum(statistics.received_nbytes.values()),
        "samples": {
            name: {
                "count": sample.count,
                "mean": plain(sample.total / sample.count) if sample.count else None,
                "maximum": plain(sample.maximum),
                "last": plain(sample.last),
            }
            for name, sample in sorted(statistics.samples.items())
        },
    }


def _links(statistics: Sequence[NodeStatistics]) -> list[JsonValue]:
    """Bytes from one node to another, as each side counted them, and what the sender's link measured."""
    sent, received = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    links: dict[tuple[int, int], LinkStatistics] = {}
    for each in statistics:
        sent.update({(each.node, peer): nbytes for peer, nbytes in each.sent_nbytes.items()})
        received.update({(peer, each.node): nbytes for peer, nbytes in each.received_nbytes.items()})
        for peer, link in each.links.items():
            pair = each.node, peer
            links[pair] = links[pair].plus(link) if pair in links else link
    return [
        {
            "source": source,
            "target": target,
            "sent_nbytes": sent[source, target],
            "received_nbytes": received[source, target],
            **_delivered(links.get((source, target))),
        }
        for source, target in sorted(sent.keys() | received.keys())
    ]


def _delivered(link: LinkStatistics | None) -> dict[str, JsonValue]:
    """What a link has measured; null where there is none, and where nothing was acknowledged."""
    if link is None:
        return dict.fromkeys(("delivered_nbytes", "busy_s", "goodput_nbytes_s", "delay_s"))
    return {
        "delivered_nbytes": link.nbytes,
        "busy_s": link.busy_s,
        "goodput_nbytes_s": link.goodput if link.messages else None,
        "delay_s": link.mean_delay_s if link.messages else None,
    }


def _merged(statistics: Sequence[NodeStatistics], name: str) -> SampleStatistics | None:
    """All samples of this name, over all nodes; None if there is none."""
    samples = [sample for sample in samples_named(statistics, name) if sample.count]
    if not samples:
        return None
    return SampleStatistics(
        count=sum(sample.count for sample in samples),
        total=sum(sample.total for sample in samples),
        maximum=max(sample.maximum for sample in samples),
        last=samples[-1].last,
    )
