"""What benchmarks make of what they measured."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ako_jobs import ako
from ako_jobs.parameter_server import Config
from dataflow.errors import JobFailedError
from dataflow.lab.chaos import Kind
from dataflow.observe.events import JobEvent
from dataflow.reports import NodeStatistics, OperatorReport, SampleStatistics

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def lab_mnist(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("lab_mnist")


@pytest.fixture
def lab_slow(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("lab_slow")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("streams")


@pytest.fixture
def stream_ends(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("stream_ends")


@pytest.mark.parametrize(
    ("accuracies", "index"),
    [
        ([0.97, 0.985, 0.9849, 0.985, 0.986, 0.99], 4),
        ([0.985, 0.985], 1),
        ([0.99, 0.98, 0.99, 0.98, 0.99], None),
        ([0.99], None),
        ([], None),
    ],
)
def test_target_is_reached_at_the_second_validation_in_a_row_that_holds_it(
    lab_mnist: ModuleType, accuracies: list[float], index: int | None
) -> None:
    validations = [(2.5 * (number + 1), 12_000 * (number + 1), each) for number, each in enumerate(accuracies)]
    expected = None if index is None else (2.5 * (index + 1), 12_000 * (index + 1))
    assert lab_mnist.reached(validations) == expected


def test_tuning_changes_one_setting_after_the_other_and_goes_on_from_the_best(lab_mnist: ModuleType) -> None:
    def execute(settings: Mapping[str, str]) -> object:
        # Only batches of 16 with a rate of 0.2 hold the target; of others, rates close to 0.2 come closest.
        rate, batch = float(settings["lr"]), int(settings["batch"])
        accuracy = 0.99 if (rate, batch) == (0.2, 16) else 0.9 - abs(rate - 0.2)
        return lab_mnist.Run("ako", 100, settings, validations=[(1.0, 1, accuracy), (2.0, 2, accuracy)])

    runs = lab_mnist.tune({"lr": "0.1", "batch": "32"}, {"lr": ["0.2", "0.3"], "batch": ["16", "64"]}, execute)
    tried = [(run.settings["lr"], run.settings["batch"]) for run in runs]
    assert tried == [("0.1", "32"), ("0.2", "32"), ("0.3", "32"), ("0.2", "16"), ("0.2", "64")]
    assert lab_mnist.best(runs) is runs[3]
    assert lab_mnist.best(runs[:3]) is runs[1]


def test_what_tuning_tries_goes_by_what_a_system_begins_with(lab_mnist: ModuleType) -> None:
    tried = lab_mnist.multiples({"lr": "0.05", "batch": "24", "epochs": "3", "p": "2"})
    assert tried == {"lr": ["0.03", "0.08"], "batch": ["12", "48"], "epochs": ["2", "4"]}


def test_settings_of_a_system_are_read_as_they_are_typed(lab_mnist: ModuleType) -> None:
    assert lab_mnist.settings_of("every=8 p=2") == {"every": "8", "p": "2"}


def test_summary_counts_runs_that_never_got_there_in_no_median_and_pairs_ratios_by_seed(lab_mnist: ModuleType) -> None:
    def run(system: str, seed: int, *validations: tuple[float, int, float]) -> object:
        return lab_mnist.Run(system, seed, {}, sent_nbytes=3_000_000, validations=list(validations))

    runs = [
        run("ako", 0, (1.0, 12_000, 0.99), (2.0, 24_000, 0.99)),
        run("ddp", 0, (3.0, 12_000, 0.99), (6.0, 24_000, 0.99)),
        run("ako", 1, (1.0, 12_000, 0.9)),
        run("ddp", 1, (3.0, 12_000, 0.99), (7.0, 24_000, 0.99)),
    ]
    _, ako, ddp = lab_mnist.summary(["ako", "ddp"], runs)
    # Images a second: 12,000 in both runs of ako; 4,000 and 24,000 / 7 in those of ddp.
    assert ako.split() == ["ako", "1", "of", "2", "2.00", "12,000", "3", "1.00"]
    assert ddp.split() == ["ddp", "2", "of", "2", "6.50", "[6.25,", "6.75]", "3,714", "3", "3.00"]


def test_table_of_slow_links_says_never_and_pairs_ratios_by_seed(lab_mnist: ModuleType, lab_slow: ModuleType) -> None:
    def run(system: str, seed: int, seconds: float, accuracy: float) -> object:
        validations = [(seconds / 2, 12_000, accuracy), (seconds, 24_000, accuracy)]
        return lab_mnist.Run(system, seed, {}, 0.98, sent_nbytes=3_000_000, validations=validations)

    slow = [run("ako", 0, 2.0, 0.98), run("ddp", 0, 8.0, 0.99), run("ako", 1, 4.0, 0.9), run("ddp", 1, 12.0, 0.98)]
    lines = lab_slow.table({"10mbit": slow, "20mbit": [run("ako", 0, 2.0, 0.9)]}, ["ako", "ddp"]).splitlines()
    assert lines[2:] == [
        "| 10mbit | ako | 1 of 2 | 2.0 | 2.0, never | 3.0 | 9,000 |  |",
        "| 10mbit | ddp | 2 of 2 | 10.0 | 8.0, 12.0 | 3.0 | 2,500 | 4.00 |",
        "| 20mbit | ako | 0 of 1 |  | never | 3.0 | 12,000 |  |",
    ]


def test_transfer_says_goodput_and_processor_time_of_both_ends(streams: ModuleType) -> None:
    transfer = streams.Transfer("links", "4 KiB", 500_000, 4_000, wall_s=4.0, sender_s=2.0, receiver_s=3.0)
    assert transfer.goodput == 500e6
    assert transfer.cpu_s_per_gb == 2.5
    assert transfer.messages_per_core_s == 100_000


def test_ready_messages_take_turns(stream_ends: ModuleType) -> None:
    messages = list(stream_ends.ready(17, 3))
    assert messages[0] is messages[16]
    assert len({id(message) for message in messages}) == 16
    assert {len(message) for message in messages} == {3}


@pytest.mark.parametrize("init", ["uniform", "glorot"])
def test_network_of_pytorchs_side_is_that_of_the_paper(monkeypatch: pytest.MonkeyPatch, init: str) -> None:
    """With ReLU before pooling, and a convolution for a linear layer, whose first weights are its, too."""
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    nn, network = torch.nn, importlib.import_module("mnist_torch_job").layers(init)
    paper = nn.Sequential(
        *(nn.Conv2d(1, 10, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(10, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 100, 4), nn.ReLU(), nn.Flatten(), nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10)),
    )
    with torch.no_grad():
        for mine, other in zip(network.parameters(), paper.parameters(), strict=True):
            other.copy_(mine.view(other.shape))
        images = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(network(images), paper(images))
    fans = 20 * 4 * 4 if init == "uniform" else (20 + 100) * 4 * 4 / 6
    assert 0.99 < float(network[7].weight.detach().abs().max()) * fans**0.5 <= 1.000001


@pytest.fixture
def dana_runs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS / "reproductions"))
    return importlib.import_module("dana_runs")


@pytest.fixture
def momentum(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS / "reproductions"))
    return importlib.import_module("momentum")


@pytest.fixture
def dana_speedup(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS / "reproductions"))
    return importlib.import_module("dana_speedup")


def test_asynchronous_workers_are_as_much_faster_as_the_papers_figure_says(dana_speedup: ModuleType) -> None:
    spreads = dana_speedup.SPREADS
    assert dana_speedup.ratio(spreads["gamma"], 32, draws=50)[0] == pytest.approx(1.219, abs=0.01)
    assert dana_speedup.ratio(spreads["gamma-heterogeneous"], 1000, draws=50)[0] == pytest.approx(6.7, abs=0.5)
    assert dana_speedup.ratio(spreads["constant"], 7, draws=1)[0] == 1.0


def test_tables_of_rules_have_mean_and_deviation_and_say_where_seeds_are_missing(dana_runs: ModuleType) -> None:
    runs = [
        {
            "compute": "gamma",
            "workers": workers,
            "lr": 0.006,
            "rule": rule,
            "data_set": "mnist",
            "model": "auto",
            "epochs": 2.0,
            "dc_lambda": 2.0,
            "accuracy": accuracy,
            "gradients": [30, 60],
            "staleness": {"gap": 2e-6},
        }
        for workers, rule, accuracy in ((8, "asgd", 90.0), (8, "asgd", 92.0), (8, "asgd", 94.0), (16, "easgd", 50.0))
    ]
    lines = list(dana_runs.tables(runs))
    assert lines[1:5] == [
        "| workers | asgd | easgd |",
        "| --- | --- | --- |",
        "| 8 | 92.00 ± 2.00 |  |",
        "| 16 |  | 50.00 (1) |",
    ]
    assert lines[8] == "| 8 | 2e-06 ± 0 |  |"
    assert lines[0] == "\nmnist, model auto, 2 epochs, compute gamma, lr 0.006, lambda 2: accuracy, %"
    assert lines[-2:] == ["| 8 | 2.00 ± 0.00 |  |", "| 16 |  | 2.00 (1) |"]


def test_run_of_rules_passes_lambda_to_those_that_have_one(
    dana_runs: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def simulate(job: str, settings: dict[str, Any], **_: Any) -> SimpleNamespace:
        Config.parse(settings)
        asked.append(settings)
        return SimpleNamespace(state="FAILED", reports=[], record={"nodes": []}, reason="it diverged")

    monkeypatch.setattr(dana_runs, "simulate", simulate)
    runs = [
        dana_runs.one("gamma", 16, 0.01, 0, rule, "cifar10", "auto", 2.0, 0.25, "folder")
        for rule in ("dana-dc", "dana-slim")
    ]
    assert [each.get("dc_lambda") for each in asked] == [0.25, None]
    assert {(run["accuracy"], run["data_set"], run["reason"]) for run in runs} == {(10.0, "cifar10", "it diverged")}


def test_momentum_runs_are_told_apart_and_tabled_by_all_but_their_seed(
    momentum: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def simulate(job: str, settings: dict[str, Any], *, nodes: int, **_: Any) -> SimpleNamespace:
        ako.Config.parse(settings)
        accuracy = 0.9 + settings["seed"] / 50
        reports = [{"port": "validate.results", "accuracy": each, "validation_accuracy": 0.5} for each in (0, accuracy)]
        return SimpleNamespace(state="FINISHED" if nodes > 1 else "FAILED", reports=reports, record={}, reason="")

    monkeypatch.setattr(momentum, "simulate", simulate)
    asked = [
        momentum.Run(nodes, 0.9 if look else 0, look, 0.01, 8, 2, seed)
        for nodes, look, seed in ((8, 3, 0), (8, 3, 1), (1, 0, 0))
    ]
    assert list(momentum.table([momentum.one(run, "folder") for run in asked]))[2:] == [
        "| 1 | 0 | 0 | 0.01 | 8 | 2 | 10.00 | 10.00 | 1 |",
        "| 8 | 0.9 | 3 | 0.01 | 8 | 2 | 91.00 ± 1.41 | 50.00 ± 0.00 | 2 |",
    ]


def test_staleness_of_a_run_is_the_mean_over_all_workers_samples(dana_runs: ModuleType) -> None:
    lag = [{"mean": 3.0, "count": 1}, {"mean": 6.0, "count": 2}]
    record = {"nodes": [{"samples": {"load.lag": lag[0]}}, {"samples": {"load.lag": lag[1]}}, {"samples": {}}]}
    assert dana_runs.staleness(record) == {"lag": 5.0}


def test_kills_are_in_each_phase_once_in_six_seeds_and_the_same_with_the_same_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    faults = importlib.import_module("faults")
    runs = [faults.kill_of(seed) for seed in range(50)]
    assert runs == [faults.kill_of(seed) for seed in range(50)]
    assert {run.phase for run in runs[12:18]} == set(faults.Phase)
    for run in runs:
        assert {fault.kind for fault in run.faults} == {Kind.KILL}
        assert len({fault.host for fault in run.faults}) == 1
        assert max(fault.at_s for fault in run.faults) <= run.time_s <= 25
    # Host and moment do not go by the phase.
    assert len({run.faults[0].host for run in runs if run.phase is faults.Phase.ENDS}) > 1


def test_tree_has_converged_when_the_last_node_has_all_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    lab_tree = importlib.import_module("lab_tree")

    def told(at_s: float, node: int, last: bool, updates: int) -> JobEvent:
        report = OperatorReport("absorb.have", {"last": last, "updates": updates})
        return JobEvent(0, at_s, at_s, node=node, report=report)

    events = [
        told(1.0, 0, False, 3),
        told(2.0, 0, True, 4),
        told(2.5, 1, True, 4),
        told(3.0, 0, False, 8),
        told(3.25, 1, False, 6),
        told(4.0, 1, False, 8),
    ]
    assert lab_tree.convergence(events, 2, 4) == 1.5
    with pytest.raises(JobFailedError, match="without all updates"):
        lab_tree.convergence(events[:-1], 2, 4)
    # At 3.25 s both have made 4 at a pace of 0.5 s; they know 8 and 6, so lack 1 on average, of 2 x 2 in a second.
    assert lab_tree.gaps(events, 2, 4, 0.5)[-2] == (3.25, 0.25)


def test_bandwidth_used_is_of_the_while_between_two_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    lab_bandwidth = importlib.import_module("lab_bandwidth")

    def told(seconds: float, sent: int, waited_s: float, foretold: tuple[int, float], interface: int) -> object:
        samples = {
            "partition.predicted_nbytes_s": SampleStatistics(*foretold, maximum=99.0, last=99.0),
            "partition.every": SampleStatistics(foretold[0], 2.0 * foretold[0], maximum=2.0, last=2.0),
        }
        sizes = {1: sent, 2: sent}
        statistics = NodeStatistics(0, 10, 0, {}, waited_s, sizes, {}, samples, running_s=seconds)
        return lab_bandwidth.Told(statistics, interface)

    before, after = told(2.0, 500, 0.5, (2, 900.0), 1_000), told(6.0, 900, 1.5, (6, 1_700.0), 2_000)
    # In 4 s 400 bytes to each of two peers, 1 s held back; four samples of 200 bytes a second on average.
    assert lab_bandwidth.used(before, after) == lab_bandwidth.Used(200.0, 200.0, 250.0, 0.25, 2.0)
