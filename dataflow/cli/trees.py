"""What ``ako check --audit`` and ``ako plan --rate`` show of a tree job; imported for these alone."""

from __future__ import annotations

from dataclasses import asdict

from ako_jobs.audit import audit
from ako_jobs.tree_plan import Costs, compare, measured_update_s
from dataflow import ClusterModel, JobSpec, SystemClock, measure_connection
from dataflow.cli.common import print_json, print_table
from dataflow.errors import ConfigError
from dataflow.quantities import duration
from operators.shared_replica import SharedReplica


def show_audit(spec: JobSpec, *, as_json: bool) -> None:
    """Show that the nodes of a tree job end with all updates."""
    found = audit(spec)
    if as_json:
        print_json(asdict(found))
        return
    print(
        f"{spec.name} on {spec.nodes} nodes: every node ends with all {sum(found.updates):,} updates; replicas are "
        f"{found.apart:.2g} from their sum at most, and rounding explains {found.allowed:.2g}"
    )


def show_topologies(spec: JobSpec, rate: float, *, as_json: bool) -> None:
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
