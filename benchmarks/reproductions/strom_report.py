"""Tables and the picture of docs/reproductions-strom.md, from the folders of its comparisons.

    python benchmarks/reproductions/strom_report.py strom_tau strom_tau_mlp strom_nodes strom_width PICTURE.svg

The ratio of a run is the bytes of as many gradients sent whole over the bytes that it sent, heads of messages included
in both; of codes alone it is without them, as the paper's. Needs the extra ``[plots]``.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from ako_jobs.jobs import load_job
from dataflow.message import HEADER_NBYTES
from operators.dnn import build_network

PAPER_SPEEDS = {1: 1, 5: 4.3, 10: 8.7, 20: 17, 40: 33, 80: 54}
"""strom_sparse_sgd.txt Table 2: speed relative to one machine by machines."""

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Run:
    """A run: the threshold, none if gradients were sent whole; machines, weights; what came out."""

    tau: float | None
    nodes: int
    n_weights: int
    accuracy: float
    message_nbytes: float
    ratio: float
    speed: float


def read(path: Path) -> Run:
    """The run of a record."""
    record: dict[str, Any] = json.loads(path.read_text())
    config, totals, nodes = record["config"], record["totals"], len(record["nodes"])
    codec = config.get("codec", "none")
    job = load_job(str(HERE / "strom_width_job.py") if "width" in config else record["name"])
    n_weights = build_network(job.config.parse({**config, "phantom": False}).network()).n_weights
    messages = totals["gradients"] * (nodes - 1)
    message_nbytes = totals["sent_nbytes"] / messages if messages else 0.0
    accuracies = [report["accuracy"] for report in record["reports"] if "accuracy" in report]
    return Run(
        tau=None if codec == "none" else float(codec.partition("tau=")[2]),
        nodes=nodes,
        n_weights=n_weights,
        accuracy=100 * accuracies[-1] if accuracies else 0.0,
        message_nbytes=message_nbytes,
        ratio=(4 * n_weights + HEADER_NBYTES) / message_nbytes if messages else 1.0,
        speed=totals["gradients"] * record["simulation"]["step_s"] / record["run_s"],
    )


def runs(folder: Path) -> list[Run]:
    """The runs of a comparison."""
    return [read(path) for path in sorted(folder.glob("runs/*/seed-*/record.json"))]


def over_tau(found: list[Run]) -> list[tuple[float | None, list[Run]]]:
    """Runs by threshold, those sent whole first."""
    groups: dict[float | None, list[Run]] = defaultdict(list)
    for run in found:
        groups[run.tau].append(run)
    return sorted(groups.items(), key=lambda group: group[0] or 0.0)


def tau_table(found: list[Run]) -> str:
    """Accuracy and ratio over the threshold."""
    lines = ["| tau | accuracy, % | of each seed | bytes of a message | ratio | of codes alone |", "| --- " * 6 + "|"]
    for tau, group in over_tau(found):
        seeds = ", ".join(f"{run.accuracy:.2f}" for run in group)
        nbytes = fmean(run.message_nbytes for run in group)
        codes = 4 * group[0].n_weights / (nbytes - HEADER_NBYTES)
        lines.append(
            f"| {'dense' if tau is None else f'{tau:g}'} | {fmean(run.accuracy for run in group):.2f} | {seeds} "
            f"| {nbytes:,.0f} | {_ratio(group):,.0f} | {codes:,.0f} |"
        )
    return "\n".join(lines)


def _ratio(group: list[Run]) -> float:
    """That of several runs together."""
    return (4 * group[0].n_weights + HEADER_NBYTES) / fmean(run.message_nbytes for run in group)


def nodes_table(found: list[Run]) -> str:
    """Speed over the number of machines."""
    taus = [tau for tau, _ in over_tau(found)]
    by = {(run.tau, run.nodes): run for run in found}
    names = ["dense" if tau is None else f"tau={tau:g} (ratio)" for tau in taus]
    lines = [f"| machines | the paper | {' | '.join(names)} |", "| --- " * (len(names) + 2) + "|"]
    for nodes in sorted({run.nodes for run in found}):
        cells = [
            "" if run is None else f"{run.speed:.2f}" if tau is None else f"{run.speed:.1f} ({run.ratio:.0f})"
            for tau, run in ((tau, by.get((tau, nodes))) for tau in taus)
        ]
        lines.append(f"| {nodes} | {PAPER_SPEEDS[nodes]:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def width_table(found: list[Run]) -> str:
    """Message over model."""
    lines = ["| weights | accuracy, % | bytes of a message | ratio |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {run.n_weights:,} | {run.accuracy:.2f} | {run.message_nbytes:,.0f} | {run.ratio:,.0f} |"
        for run in sorted(found, key=lambda run: run.n_weights)
    ]
    return "\n".join(lines)


def picture(conv: list[Run], mlp: list[Run], nodes: list[Run]) -> Figure:
    """Accuracy and ratio over the threshold, and speed over machines."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for name, found, colour in (("convolutions", conv, "C0"), ("sigmoids", mlp, "C1")):
        points = [(tau, group) for tau, group in over_tau(found) if tau is not None]
        taus = [tau for tau, _ in points]
        left.plot(taus, [fmean(run.accuracy for run in group) for _, group in points], colour, marker="o", label=name)
        for tau, group in points:
            left.plot([tau] * len(group), [run.accuracy for run in group], ".", color=colour, alpha=0.4)
        dense = fmean(run.accuracy for run in found if run.tau is None)
        left.axhline(dense, color=colour, linestyle="--", linewidth=0.8)
        middle.plot(taus, [_ratio(group) for _, group in points], colour, marker="o", label=name)
    left.set(xscale="log", xlabel="tau", ylabel="test accuracy, % (dashed: sent whole)")
    middle.set(xscale="log", yscale="log", xlabel="tau", ylabel="bytes sent whole / bytes sent")
    middle.axhline(300, color="0.6", linewidth=0.8)
    right.plot(list(PAPER_SPEEDS), list(PAPER_SPEEDS.values()), "k:", marker="x", label="the paper, tau=4")
    for tau, group in over_tau(nodes):
        points_of = sorted((run.nodes, run.speed) for run in group)
        name = "sent whole" if tau is None else f"tau={tau:g}"
        right.plot([at for at, _ in points_of], [speed for _, speed in points_of], marker="o", label=name)
    right.set(xscale="log", yscale="log", xlabel="machines", ylabel="speed, one machine = 1")
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure


def main() -> None:
    """Read the comparisons, print the tables, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("conv", "mlp", "nodes", "width"):
        parser.add_argument(name, type=Path, help="folder that ako compare has written")
    parser.add_argument("picture", type=Path, help="file to write: .svg or .png")
    options = parser.parse_args()
    conv, mlp, nodes, width = (runs(each) for each in (options.conv, options.mlp, options.nodes, options.width))
    print("\n\n".join((tau_table(conv), tau_table(mlp), width_table(width), nodes_table(nodes))))
    # Without a date and with a fixed salt, the same records give the same bytes.
    mpl.rcParams["svg.hashsalt"] = "ako"
    metadata = {"Date": None} if options.picture.suffix == ".svg" else None
    picture(conv, mlp, nodes).savefig(options.picture, metadata=metadata)


if __name__ == "__main__":
    main()
