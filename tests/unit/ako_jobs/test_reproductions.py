"""The committed comparisons of the paper's figures are comparisons, of what their names and the paper say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ako_jobs.compare.comparison import Comparison, read_comparison
from ako_jobs.compare.runs import check_cases
from ako_jobs.models import network
from dataflow.quantities import bytes_per_second
from operators.cost_model import CostModel
from operators.dnn import build_network

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "benchmarks" / "reproductions").glob("*.toml"))
PAGES = [ROOT / "docs" / name for name in ("reproductions.md", "reproductions-strom.md")]
MNIST_NBYTES = 238_360
"""Of the paper's MNIST network: 4 bytes for each of 59,590 weights."""

SPLIT = re.compile(r"PS\[(\d+)\+(\d+)\]")


def _id(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", FILES, ids=_id)
def test_reproduction_file_with_the_digits_in_place_of_its_data_is_found_runnable(path: Path) -> None:
    comparison = read_comparison(path)
    small = comparison.model_copy(update={"settings": {**comparison.settings, "data": "digits"}})
    assert set(check_cases(small)) == set(comparison.variants)


@pytest.mark.parametrize("path", FILES, ids=_id)
def test_reproduction_file_names_its_splits_as_they_are(path: Path) -> None:
    for case in read_comparison(path).cases():
        if split := SPLIT.fullmatch(case.variant):
            workers, servers = int(split[1]), int(split[2])
            colocated = case.settings["servers"] == "all"
            assert case.nodes == (workers if colocated else workers + servers)
            assert servers == (case.nodes if colocated else int(case.settings["servers"]))


@pytest.mark.parametrize("path", FILES, ids=_id)
def test_reproduction_file_names_no_folder_of_data_and_has_its_command_on_the_page(path: Path) -> None:
    comparison = read_comparison(path)
    assert not any(
        "data_dir" in each for each in (comparison.settings, *(v.settings for v in comparison.variants.values()))
    )
    command = f"ako compare benchmarks/reproductions/{path.name} --sim --out {path.stem}"
    assert command in path.read_text()
    assert sum(command in page.read_text() for page in PAGES) == 1


@pytest.mark.parametrize(
    ("name", "nodes", "p"),
    [("fig12_partitions", 8, 3), ("fig10_efficiency", 16, 5), ("fig09_scaling", 32, 10), ("fig09_scaling", 64, 20)],
)
def test_reproduction_cost_model_asks_for_as_many_partitions_as_the_page_says(name: str, nodes: int, p: int) -> None:
    comparison: Comparison = read_comparison(ROOT / "benchmarks" / "reproductions" / f"{name}.toml")
    assert comparison.cluster is not None
    model = comparison.cluster.model()
    assert model.step_s is not None
    assert model.rate == bytes_per_second("1gbit")
    assert build_network(network("auto", "mnist", "uniform")).n_weights * 4 == MNIST_NBYTES
    cost = CostModel(model_nbytes=MNIST_NBYTES, bandwidth=model.rate, every=1)
    assert cost.best(cost.load(1 / model.step_s, nodes - 1), 0.0, nodes - 1).partitions == p
