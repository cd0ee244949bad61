from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from compare_records import comparison, outcomes, record

from ako_jobs.compare.table import rows

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'ako-dataflow[plots]'")

from ako_jobs.compare import plots
from ako_jobs.compare.looks import look_of

ALWAYS = {
    "accuracy_over_epochs",
    "accuracy_over_time",
    "bandwidth_over_time",
    "epoch_time",
    "gap_over_time",
    "staleness_over_time",
    "traffic",
    "utilisation_over_time",
}
ACCURACY = {"accuracy_over_epochs", "accuracy_over_time"}
NEVER = ((2.0, 1.0, 0.5), (10.0, 5.0, 0.6))


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of few pixels, which are drawn sooner."""
    monkeypatch.setitem(plots._STYLE, "figure.dpi", 20)


def drawn(compared, folder: Path, *records) -> set[str]:
    ended = outcomes(compared, *records)
    paths = plots.draw(compared, rows(compared, ended), ended, folder)
    assert {path.suffix for path in paths} <= {".png", ".svg"}
    assert all(path.stat().st_size > 1000 for path in paths)
    return {path.stem for path in paths}


def pictured(compared, *records) -> plots.Pictured:
    ended = outcomes(compared, *records)
    told = {(each.run.case.variant, each.run.case.point): [each.record] for each in ended.ended}
    return plots.Pictured(compared, rows(compared, ended), told)


def test_draw_writes_every_picture_that_there_is_something_to_draw_of(tmp_path: Path) -> None:
    swept = comparison(variants={"a": {"job": "ako"}}, seeds=1, sweep={"nodes": [2, 4], "lr": [0.1]})
    assert drawn(swept, tmp_path, record(), record(NEVER)) == {
        *ALWAYS,
        "time_to_target",
        "sweep_nodes",
        "sweep_lr",
    }


def test_draw_removes_what_there_is_nothing_to_draw_of_any_more(tmp_path: Path) -> None:
    drawn(comparison(variants={"a": {"job": "ako"}}, seeds=1), tmp_path, record())
    (tmp_path / "notes.svg").touch()
    left = drawn(comparison(variants={"a": {"job": "ako"}}, seeds=1, target=None), tmp_path, record())
    assert "time_to_target" not in left
    assert {path.stem for path in tmp_path.iterdir()} == {*left, "notes"}


def test_draw_gaps_of_gradients_where_there_are_any_and_nothing_of_runs_that_failed(tmp_path: Path) -> None:
    told = record()
    told["series"][-1].update(gapped_gradients=2, gradient_gap=1.0)
    some = comparison(seeds=2, target=None)
    assert drawn(some, tmp_path, told, "it failed", None, None) == {*ALWAYS, "gradient_gap_over_time"}


def test_draw_lags_and_normalised_gaps_where_there_are_any(tmp_path: Path) -> None:
    told = record()
    told["series"][-1].update(lagged_gradients=2, lag=1.0, normalised_gradients=1, normalised_gap=0.5)
    new = {"lag_over_time", "normalised_gap_over_time"}
    assert drawn(comparison(seeds=1, target=None), tmp_path, told, record()) == {*ALWAYS, *new}


def test_draw_runs_without_series_leave_pictures_empty(tmp_path: Path) -> None:
    silent = {**record(), "series": [], "links": []}
    unknown = {"gap_over_time", "staleness_over_time"}
    assert drawn(comparison(seeds=1), tmp_path, silent, silent) == {*ALWAYS, "time_to_target"} - unknown


def test_draw_line_of_few_points_shows_them() -> None:
    """Of a line of one point nothing else shows."""
    short = record()
    short["series"][1:] = []
    figures = dict(plots._pictures(pictured(comparison(seeds=1), short, record())))
    markers = {
        name: [line.get_marker() for line in figures[name].axes[0].lines[:2]] for name in ALWAYS & figures.keys()
    }
    assert markers["gap_over_time"] == [".", "."]
    assert markers["bandwidth_over_time"] == [".", "."]
    longer = record(tuple((second, second, 0.5) for second in (1.0, 2.0, 3.0, 4.0)))
    figures = dict(plots._pictures(pictured(comparison(seeds=1), longer, record())))
    assert [line.get_marker() for line in figures["accuracy_over_time"].axes[0].lines[:2]] == ["", "."]


def test_draw_long_names_are_whole_and_do_not_overlap() -> None:
    long = [f"{job} momentum=0.5 schedule=cosine warmup=0.5" for job in ("parameter_server", "all_to_all", "ako")]
    swept = {"latency": ["1ms", "2ms"], "compute": ["constant", "gamma-heterogeneous"]}
    compared = comparison(variants={name: {"job": "ako"} for name in long}, seeds=1, sweep=swept)
    with plots.mpl.rc_context(plots._STYLE):
        every = plots._pictures(pictured(compared, *[record(NEVER)] * 12))
        for name, figure in ((name, figure) for name, figure in every if figure is not None):
            figure.get_layout_engine().execute(figure)
            inside = figure.get_tightbbox()
            width, height = figure.get_size_inches()
            assert inside.x0 >= 0, name
            assert inside.y0 >= 0, name
            assert inside.x1 <= width, name
            assert inside.y1 <= height, name
            titles = [axes.title.get_window_extent() for axes in figure.axes if axes.get_title()]
            assert not any(one.overlaps(other) for one, other in combinations(titles, 2)), name


def test_draw_variant_without_a_name(tmp_path: Path) -> None:
    assert drawn(comparison(variants={"": {"job": "ako"}}, seeds=1), tmp_path, record()) >= ALWAYS


def test_draw_values_that_are_nearly_alike_with_room_above_them() -> None:
    compared = comparison(variants={"a": {"job": "ako"}}, seeds=1, sweep={"lr": ["0.1", "0.2"]})
    longer = record()
    longer["run_s"] *= 1.0001
    figures = dict(plots._pictures(pictured(compared, record(), longer)))
    epoch = next(axes for axes in figures["sweep_lr"].axes if axes.get_ylabel() == "time of an epoch, s")
    assert epoch.get_ylim() == pytest.approx((0, 1.05 * max(epoch.lines[0].get_ydata())))


def test_draw_names_with_dollars_as_they_are(tmp_path: Path) -> None:
    compared = comparison(variants={"for $5^{ and $": {"job": "ako"}, "$x_1$": {"job": "ako"}}, seeds=1)
    assert drawn(compared, tmp_path, record(), record()) >= ALWAYS
    with plots.mpl.rc_context(plots._STYLE):
        figure = dict(plots._pictures(pictured(compared, record(), record())))["accuracy_over_time"]
    shown = figure.legends[0].get_texts()[1]
    assert (shown.get_text(), shown.get_parse_math()) == ("$x_1$", False)


def test_draw_runs_without_validations_have_no_pictures_of_accuracy(tmp_path: Path) -> None:
    blind = comparison(seeds=1, target=None, sweep={"nodes": [2, 4]})
    assert drawn(blind, tmp_path, *[record(())] * 4) == {*ALWAYS, "sweep_nodes"} - ACCURACY


def test_draw_when_no_run_finished_writes_nothing(tmp_path: Path) -> None:
    assert drawn(comparison(seeds=1), tmp_path / "none", "it failed", None) == set()
    assert not (tmp_path / "none").exists()


def test_draw_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    compared = comparison(seeds=1)
    for folder in ("a", "b"):
        drawn(compared, tmp_path / folder, record(), record(NEVER))
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_look_of_a_variant_is_its_own_among_thirty() -> None:
    variants = {f"v{number}": {"job": "ako"} for number in range(30)}
    compared = comparison(variants=variants, seeds=1)
    pictured = plots.Pictured(compared, (), {})
    assert len({(pictured.look(name).colour, pictured.look(name).dashes) for name in variants}) == 30


def test_look_of_a_variant_is_its_own_also_where_dashes_say_something_else() -> None:
    looks = [look_of(number, 30) for number in range(30)]
    assert len({(look.colour, look.marker) for look in looks}) == 30


def test_draw_legend_of_many_variants_in_a_sweep_tells_them_apart_and_leaves_the_panels_their_room() -> None:
    variants = {f"parameter_server consistency=async rule={number}": {"job": "ako"} for number in range(10)}
    swept = {"nodes": ["2"], "lr": ["0.01", "0.02", "0.05", "0.1", "0.2"]}
    compared = comparison(variants=variants, seeds=1, sweep=swept)
    with plots.mpl.rc_context(plots._STYLE):
        figure = dict(plots._pictures(pictured(compared, *[record(NEVER)] * 50)))["sweep_nodes"]
        figure.get_layout_engine().execute(figure)
        (legend,) = figure.legends
        handles = legend.legend_handles
        assert len({(each.get_color(), each.get_marker(), str(each.get_linestyle())) for each in handles[:10]}) == 10
        shown = {(line.get_color(), line.get_marker()) for line in figure.axes[0].lines}
        assert {(each.get_color(), each.get_marker()) for each in handles[:10]} == shown
        assert len({str(each._dash_pattern) for each in handles[10:]}) == 5
        assert all(axes.get_window_extent().height > 1.8 * figure.dpi for axes in figure.axes)
