"""Figures 3 and 4 of parameter_sharing_tree.txt from the curves that tree_paper.py writes, in one picture.

    python benchmarks/reproductions/tree_picture.py curves.json tree.svg

Needs the extra ``[plots]``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

COLOURS = ("#D55E00", "#0072B2", "#009E73")
STYLE = {"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "svg.hashsalt": "ako"}


def draw(curves: list[dict[str, Any]], path: Path) -> None:
    """Seconds to converge over nodes, and the staleness gap over time with the most nodes."""
    shapes = list(dict.fromkeys(curve["shape"] for curve in curves))
    most = max(curve["nodes"] for curve in curves)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        for shape, colour, marker in zip(shapes, COLOURS, "osD", strict=True):
            own = [curve for curve in curves if curve["shape"] == shape]
            nodes, seconds = [curve["nodes"] for curve in own], [curve["s"] for curve in own]
            left.plot(nodes, seconds, marker=marker, color=colour, label=shape)
            gaps = next(curve["gaps"] for curve in own if curve["nodes"] == most)
            right.plot(*zip(*gaps, strict=True), color=colour, label=shape)
        left.set(xlabel="nodes", ylabel="seconds to converge", ylim=(0, None))
        right.set(xlabel="seconds", ylabel=f"missing updates per worker, {most} nodes", ylim=(0, None))
        for axes in (left, right):
            axes.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Draw."""
    source, target = map(Path, sys.argv[1:])
    draw(json.loads(source.read_text()), target)


if __name__ == "__main__":
    main()
