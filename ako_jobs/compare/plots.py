"""Pictures of a comparison, with matplotlib, which this module alone imports.

A variant looks the same in every picture; see `looks`. Of a sweep, pictures over time have a panel for each combination
of values; where several keys are swept, the dashes of the other pictures of it say the values of those not on the axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ako_jobs.compare.comparison import Comparison
from ako_jobs.compare.curves import Accuracies, Rates, accuracies, rates, traffic
from ako_jobs.compare.looks import DASHES, Look, look_of
from ako_jobs.compare.runs import Outcomes, Record
from ako_jobs.compare.table import Row, Spread

_PANELS_WIDE = 3
_LINE = 40
"""Characters of a name on a line of a legend; longer ones are folded."""
_INCHES = 0.075
"""What a character is wide, or a bit less."""
_LEGEND_INCHES = 0.5
"""What figures have room for below their panels."""
_LINE_INCHES, _ENTRY_INCHES = 0.16, 0.07
"""What a line of a legend is high, and what an entry takes besides its lines."""
_FEW = 3
"""A line of so few points has them marked: of one there is none, and two may be all but the same."""
_KINDS: Mapping[str, Mapping[str, None]] = {"png": {"Software": None}, "svg": {"Date": None}}
"""The formats of a picture, and of each what it is not to say of itself, which differs from run to run."""
_STYLE = {
    "figure.dpi": 150,
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # names are the user's, and may have dollars
    "svg.hashsalt": "ako",  # the same records give the same bytes
}

Point = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Pictured:
    """A comparison as pictures need it: rows, and the records of runs that finished, by variant and swept values."""

    comparison: Comparison
    rows: Sequence[Row]
    records: dict[tuple[str, Point], list[Record]]

    @property
    def points(self) -> list[Point]:
        """Combinations of swept values."""
        return list(dict.fromkeys(point for _, point in self.records))

    def look(self, variant: str) -> Look:
        """How a variant is drawn."""
        variants = list(self.comparison.variants)
        return look_of(variants.index(variant), len(variants))


def draw(comparison: Comparison, rows: Sequence[Row], outcomes: Outcomes, folder: Path) -> list[Path]:
    """Draw every picture that there is something to draw of, as PNG and SVG, and remove what is left of others.

    Args:
        comparison: what was compared.
        rows: its table.
        outcomes: of its runs.
        folder: where the pictures go; made if it does not exist.

    Returns:
        The files.
    """
    records: dict[tuple[str, Point], list[Record]] = {(case.variant, case.point): [] for case in comparison.cases()}
    for outcome in outcomes.ended:
        if outcome.record is not None and not outcome.reason:
            records[outcome.run.case.variant, outcome.run.case.point].append(outcome.record)
    pictured = Pictured(comparison, rows, {key: found for key, found in records.items() if found})
    if not pictured.records:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(_STYLE):
        for name, figure in _pictures(pictured):
            if figure is None:  # there was something to draw when fewer runs, or others, were compared here
                for kind in _KINDS:
                    (folder / f"{name}.{kind}").unlink(missing_ok=True)
                continue
            figure.get_layout_engine().execute(figure)
            figure.set_layout_engine(None)  # or every file would be drawn once more than written
            for kind, metadata in _KINDS.items():
                path = folder / f"{name}.{kind}"
                figure.savefig(path, metadata=metadata)
                written.append(path)
    return written


def _pictures(pictured: Pictured) -> Iterator[tuple[str, Any]]:
    """Every picture by name; None for one that there is nothing to draw of."""
    timed = any(row.accuracy for row in pictured.rows)
    of_time = _over_time(pictured, accuracies, _accuracy_s, "time, s", "test accuracy, %") if timed else None
    yield "accuracy_over_time", of_time
    of_epochs = _over_time(pictured, accuracies, _accuracy_epochs, "epochs", "test accuracy, %") if timed else None
    yield "accuracy_over_epochs", of_epochs
    yield "time_to_target", None if pictured.comparison.target is None else _to_target(pictured)
    yield "epoch_time", _epoch_time(pictured)
    yield "traffic", _traffic(pictured)
    yield "bandwidth_over_time", _over_time(pictured, rates, _sending, "time, s", "a node sends, Mbit/s")
    yield "utilisation_over_time", _over_time(pictured, rates, _utilisation, "time, s", "busy compute tasks, %")
    for name, counted, line, label in (
        ("staleness", "stale_gradients", _staleness, "staleness, gradients"),
        ("gap", "gaps", _where_known("gap"), "gap of the replicas, rms of weights"),
        ("lag", "lagged_gradients", _where_known("lag"), "lag of gradients, updates"),
        ("gradient_gap", "gapped_gradients", _where_known("gradient_gap"), "gap of gradients"),
        ("normalised_gap", "normalised_gradients", _where_known("normalised_gap"), "gap of gradients / norm"),
    ):
        told = _any_told(pictured, counted)
        yield f"{name}_over_time", _over_time(pictured, rates, line, "time, s", label) if told else None
    for key in pictured.comparison.sweep:
        yield f"sweep_{key}", _sweep(pictured, key)


def _any_told(pictured: Pictured, counted: str) -> bool:
    """Whether any run's series counts any."""
    found = (each["series"] for records in pictured.records.values() for each in records)
    return any(point.get(counted) for series in found for point in series)


def _accuracy_s(found: Accuracies) -> tuple[Any, Any]:
    return found.time_s, 100 * found.accuracy


def _accuracy_epochs(found: Accuracies) -> tuple[Any, Any]:
    return found.epochs, 100 * found.accuracy


def _sending(found: Rates) -> tuple[Any, Any]:
    return found.time_s, found.sending * 8 / 1e6


def _utilisation(found: Rates) -> tuple[Any, Any]:
    return found.time_s, 100 * found.utilisation


def _staleness(found: Rates) -> tuple[Any, Any]:
    return found.time_s, found.staleness


def _where_known(name: str) -> Callable[[Rates], tuple[Any, Any]]:
    """A line from measurement to measurement of what is measured now and then only."""

    def curve(found: Rates) -> tuple[Any, Any]:
        values = getattr(found, name)
        known = ~np.isnan(values)
        return found.time_s[known], values[known]

    return curve


def _panels(count: int, *, width: float = 4.2, height: float = 3.0, **shared: Any) -> tuple[Any, list[Any]]:
    """A figure and so many axes in it."""
    wide = 2 if count == 4 else min(count, _PANELS_WIDE)
    high = -(-count // wide)
    # One panel alone has room for a small legend below it.
    size = (7.0, 4.0) if count == 1 else (width * wide, height * high + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(high, wide, squeeze=False, **shared).flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def _legend(figure: Any, pictured: Pictured, *more: Any, marked: bool = False, dashed: bool = True) -> None:
    """The variants, below the panels, for which the figure grows; `marked`, `dashed`: whether their lines are."""
    handles = []
    for name in pictured.comparison.variants:
        look = pictured.look(name)
        handle = Line2D([], [], color=look.colour, linewidth=2, label=_folded(name, _LINE))
        handle.set(linestyle=look.dashes if dashed else "-", marker=look.marker if marked else "", markersize=4)
        handles.append(handle)
    handles += more
    longest = max(len(line) for handle in handles for line in str(handle.get_label()).split("\n"))
    room = int(figure.get_figwidth() / (0.8 + _INCHES * longest))
    columns = max(1, min(3, len(handles), room))
    lines = max(str(handle.get_label()).count("\n") + 1 for handle in handles)
    high = -(-len(handles) // columns) * (lines * _LINE_INCHES + _ENTRY_INCHES)
    figure.set_figheight(figure.get_figheight() + max(0.0, high - _LEGEND_INCHES))
    # Wide enough to show any dashes.
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=3.2)


def _over_time(
    pictured: Pictured,
    read: Callable[[Record], Any],
    line: Callable[[Any], tuple[Any, Any]],
    across: str,
    up: str,
) -> Any:
    """A line for every run, a panel for every combination of swept values."""
    figure, panels = _panels(len(pictured.points), sharey=read is accuracies)
    for axes, point in zip(panels, pictured.points, strict=True):
        for (variant, at), records in pictured.records.items():
            look = pictured.look(variant)
            for record in records if at == point else ():
                xs, ys = line(read(record))
                axes.plot(
                    xs,
                    ys,
                    marker="." if len(xs) <= _FEW else "",
                    color=look.colour,
                    linestyle=look.dashes,
                    linewidth=look.width if len(records) == 1 else look.width / 1.5,
                    alpha=1.0 if len(records) == 1 else 0.65,
                )
        axes.set(xlabel=across, ylabel=up, title=_folded(_words(point), 36))
        axes.set_xlim(left=0)
        if read is rates:
            _from_zero(axes)
    if pictured.comparison.target is not None and read is accuracies:
        for axes in panels:
            axes.axhline(100 * pictured.comparison.target, color="0.4", linewidth=0.8, linestyle=(0, (1, 2)))
        _legend(figure, pictured, Line2D([], [], color="0.4", linewidth=0.8, linestyle=(0, (1, 2)), label="target"))
    else:
        _legend(figure, pictured)
    return figure


def _to_target(pictured: Pictured) -> Any:
    """Time and epochs to the target: the median as a bar, the seeds' range as a whisker."""
    rows = [row for row in pictured.rows if row.finished]
    figure = _bars_figure(rows, columns=2)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, spreads, unit in (
        (left, [row.target_s for row in rows], "time to target, s"),
        (right, [row.target_epochs for row in rows], "epochs to target"),
    ):
        for place, (row, spread) in enumerate(zip(rows, spreads, strict=True)):
            _bar(axes, place, row, spread, pictured.look(row.variant).colour)
        axes.set_xlabel(f"{unit} ({pictured.comparison.target:.4g})")
        axes.set_xlim(left=0)
        axes.grid(axis="y", visible=False)
    _name_bars(left, rows)
    return figure


def _bar(axes: Any, place: int, row: Row, spread: Spread | None, colour: str) -> None:
    if spread is None or spread.median == math.inf:
        text = f"not reached ({row.reached} of {row.finished} runs did)"
        axes.text(0.02, place, text, transform=axes.get_yaxis_transform(), va="center")
        return
    axes.barh(place, spread.median, color=colour, height=0.7)
    most = spread.most if spread.most < math.inf else spread.median
    axes.plot([spread.least, most], [place, place], color="0.2", linewidth=1.5, marker="|")
    if row.reached != row.finished:
        text = f"  {row.reached} of {row.finished} runs reached it"
        axes.text(spread.median, place, text, va="center", fontsize=8)


def _epoch_time(pictured: Pictured) -> Any:
    """Seconds of an epoch, divided into computing, waiting and the rest."""
    rows = [row for row in pictured.rows if row.epoch_s is not None]
    figure = _bars_figure(rows, columns=1)
    axes = figure.subplots()
    parts = (("computing", 1.0, ""), ("waiting for others", 0.5, "///"), ("rest", 0.2, ""))
    for place, row in enumerate(rows):
        begin, epoch_s = 0.0, row.epoch_s.median if row.epoch_s else 0.0
        for share, (_, alpha, hatch) in zip((row.computing, row.waiting, row.rest), parts, strict=True):
            length = epoch_s * (share or 0.0)
            style = {"color": pictured.look(row.variant).colour, "alpha": alpha, "hatch": hatch, "edgecolor": "white"}
            axes.barh(place, length, left=begin, height=0.7, linewidth=0.0, **style)
            begin += length
    axes.set_xlabel("time of an epoch, s")
    handles = [
        Patch(facecolor="0.2", alpha=alpha, hatch=hatch, edgecolor="white", label=name) for name, alpha, hatch in parts
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    _name_bars(axes, rows)
    return figure


def _bars_figure(rows: Sequence[Row], *, columns: int) -> Any:
    names = _INCHES * max((len(_name(row)) for row in rows), default=0)
    size = (max(5.5, 3.5 + names) + 2.5 * columns, 1.4 + 0.32 * max(len(rows), 2))
    return Figure(figsize=size, layout="constrained")


def _name_bars(axes: Any, rows: Sequence[Row]) -> None:
    axes.set_yticks(range(len(rows)), [_name(row) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def _from_zero(axes: Any) -> None:
    """Begin the scale at 0, and leave room above the highest value, which all others may be close to."""
    axes.set_ylim(bottom=0)
    axes.set_ylim(top=max(axes.get_ylim()[1], 1.05 * axes.dataLim.y1))


def _traffic(pictured: Pictured) -> Any:
    """Bytes from every node to every other, one scale for all panels."""
    sent = {key: traffic(records) / 1e6 for key, records in pictured.records.items()}
    largest = max(float(each.max()) for each in sent.values()) or 1.0
    figure, panels = _panels(len(sent), width=3.4, height=3.2)
    for axes, ((variant, point), megabytes) in zip(panels, sent.items(), strict=True):
        shown = np.ma.masked_where(np.eye(len(megabytes), dtype=bool), megabytes)
        image = axes.imshow(shown, cmap="cividis", vmin=0, vmax=largest)
        axes.set(
            xlabel="to node", ylabel="from node", title=f"{_folded(variant, 28)}\n{_folded(_words(point), 28)}".strip()
        )
        axes.grid(visible=False)
        step = -(-len(megabytes) // 8)
        axes.set_xticks(range(0, len(megabytes), step))
        axes.set_yticks(range(0, len(megabytes), step))
    figure.colorbar(image, ax=panels, label="MB sent in a run", shrink=0.8)
    return figure


def _sweep(pictured: Pictured, key: str) -> Any:
    """What a swept key changes; a line for each variant and combination of the other keys' values."""
    values = list(pictured.comparison.sweep[key])
    places = _places(values)
    combinations = list(dict.fromkeys(_others(row, key) for row in pictured.rows))
    measures = _measures(pictured)
    figure, panels = _panels(len(measures))
    for axes, (label, measure) in zip(panels, measures, strict=True):
        for variant in pictured.comparison.variants:
            for turn, others in enumerate(combinations):
                rows = [row for row in pictured.rows if row.variant == variant and _others(row, key) == others]
                known = sorted((places[row.point[key]], y) for row in rows if (y := measure(row)) is not None)
                look = pictured.look(variant)
                axes.plot(
                    [place for place, _ in known],
                    [value for _, value in known],
                    color=look.colour,
                    marker=look.marker,
                    markersize=4,
                    linewidth=look.width,
                    linestyle=DASHES[turn % len(DASHES)] if others else look.dashes,
                )
        axes.set(xlabel=key, ylabel=label)
        if not label.endswith("%"):
            _from_zero(axes)
        axes.set_xticks(list(places.values()), values)
    dashes = [
        Line2D([], [], color="0.4", linestyle=DASHES[turn % len(DASHES)], label=_folded(_words(others), _LINE))
        for turn, others in enumerate(combinations)
        if others
    ]
    _legend(figure, pictured, *dashes, marked=True, dashed=not dashes)
    return figure


def _measures(pictured: Pictured) -> list[tuple[str, Callable[[Row], float | None]]]:
    """What is drawn of a sweep: labels, and figures of a row, None where there is none."""
    measures: list[tuple[str, Callable[[Row], float | None]]] = []
    if pictured.comparison.target is not None:
        measures.append(("time to target, s", lambda row: _median(row.target_s)))
    if any(row.accuracy for row in pictured.rows):
        measures.append(("test accuracy, %", lambda row: _median(row.accuracy, 100)))
    return [
        *measures,
        ("time of an epoch, s", lambda row: _median(row.epoch_s)),
        ("a node sends, Mbit/s", lambda row: None if row.sending_rate is None else row.sending_rate * 8 / 1e6),
    ]


def _places(values: Sequence[str]) -> dict[str, float]:
    """Where values stand on an axis: numbers where they belong, other words side by side."""
    try:
        return {value: float(value) for value in values}
    except ValueError:
        return {value: float(place) for place, value in enumerate(values)}


def _median(spread: Spread | None, factor: float = 1.0) -> float | None:
    """The median; None if it is not known, or never reached."""
    return None if spread is None or spread.median == math.inf else factor * spread.median


def _name(row: Row) -> str:
    """Beside a bar."""
    return " ".join((row.variant, *(f"{key}={value}" for key, value in row.point.items())))


def _others(row: Row, key: str) -> Point:
    return tuple((other, value) for other, value in row.point.items() if other != key)


def _folded(text: str, width: int) -> str:
    """On lines of at most so many characters, where words allow."""
    return fill(text, width, break_long_words=False, break_on_hyphens=False)


def _words(point: Point) -> str:
    return ", ".join(f"{key}={value}" for key, value in point)
