from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from compare_records import comparison

from ako_jobs.cluster_options import ClusterOptions
from ako_jobs.compare.comparison import Comparison, read_comparison
from dataflow.errors import ConfigError

TWO = {"a": {"job": "ako"}, "b": {"job": "parameter_server", "settings": {"servers": 2, "momentum": 0.5}}}


def test_cases_of_a_sweep_are_all_variants_at_each_combination() -> None:
    compared = comparison(variants=TWO, sweep={"nodes": [4, 8], "lr": [0.1, 0.2]})
    assert [case.name for case in compared.cases()] == [
        "a nodes=4 lr=0.1",
        "b nodes=4 lr=0.1",
        "a nodes=4 lr=0.2",
        "b nodes=4 lr=0.2",
        "a nodes=8 lr=0.1",
        "b nodes=8 lr=0.1",
        "a nodes=8 lr=0.2",
        "b nodes=8 lr=0.2",
    ]
    assert [case.nodes for case in compared.cases()] == [4, 4, 4, 4, 8, 8, 8, 8]
    assert compared.cases()[1].folder == "02-b-nodes-4-lr-0-1"


def test_cases_settings_of_a_variant_win_over_those_of_all_and_swept_ones_are_added() -> None:
    compared = comparison(variants=TWO, settings={"momentum": 0.9, "nesterov": True}, sweep={"lr": [0.1]})
    first, second = compared.cases()
    assert first.settings == {"momentum": "0.9", "nesterov": "true", "lr": "0.1"}
    assert second.settings == {"momentum": "0.5", "nesterov": "true", "servers": "2", "lr": "0.1"}


def test_cases_cluster_keys_of_a_simulation_describe_the_cluster() -> None:
    variants = {"a": {"job": "ako", "settings": {"nodes": 2, "tasks": 3}}}
    cluster = {"bandwidth": ["1=10mbit"], "latency": "1ms"}
    slow, fast = comparison(variants=variants, cluster=cluster, sweep={"bandwidth": ["1mbit", "1gbit"]}).cases()
    assert slow.settings == {}
    assert slow.nodes == 2
    assert slow.cluster == ClusterOptions(bandwidth=("1=10mbit", "1mbit"), latency="1ms", tasks=3)
    assert fast.cluster is not None
    assert fast.cluster.model().rates_of(2) == [125e6, 1.25e6]


def test_cases_cluster_keys_without_a_simulation_are_settings_of_the_job() -> None:
    (case,) = comparison(variants={"a": {"job": "ako"}}, cluster=None, sweep={"bandwidth": ["1mbit"]}).cases()
    assert case.settings == {"bandwidth": "1mbit"}
    assert case.cluster is None


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"variants": {}}, "there is nothing to compare"),
        ({"seed": 3}, "unknown key (got seed); did you mean 'seeds'?"),
        ({"variants": {"a": {"jobs": "ako", "job": "ako"}}}, "unknown key (got variants.a.jobs); did you mean 'job'?"),
        ({"cluster": {"bandwith": "1gbit"}}, "unknown key (got cluster.bandwith); did you mean 'bandwidth'?"),
        ({"cluster": {"bandwidth": 3}}, 'cluster.bandwidth: must be "text", or a list of these (got 3)'),
        ({"variants": {"a": {}}}, "variants.a.job: is missing"),
        ({"variants": 3}, "variants: must be a table (got 3)"),
        ({"variants": {"a": "ako"}}, "variants.a: must be a table (got ako)"),
        ({"variants": {"a": {"job": 1}}}, 'variants.a.job: must be "text" (got 1)'),
        ({"sweep": {"p": 1}}, "sweep.p: must be a list, such as [1, 2] (got 1)"),
        ({"settings": {"p": [1, 2]}}, 'settings.p: write a number, true, false or "text"'),
        ({"sweep": {"p": []}}, "sweep.p: must hold a value (got [])"),
        ({"sweep": {"p": [1, "1"]}}, "the sweep over p has a value twice (got 1)"),
        ({"sweep": {"nodes": ["many"]}}, "nodes: must be a positive integer (got many)"),
        ({"sweep": {"nodes": [0]}}, "nodes: must be a positive integer (got 0)"),
        ({"sweep": {"tasks": [0]}}, "tasks: must be greater than 0 (got 0)"),
        ({"sweep": {"seed": [1, 2]}}, "seeds are counted, not given"),
        ({"settings": {"seed": 1}}, "seeds are counted, not given"),
        ({"settings": {"bandwidth": "1gbit"}}, "bandwidth is about the cluster, not a setting of every job"),
        ({"settings": {"nodes": 3}, "cluster": None}, "nodes is about the cluster, not a setting of every job"),
        ({"variants": TWO, "sweep": {"servers": [1]}}, "servers is swept, and the variant 'b' has a value of its own"),
        ({"target": 1.5}, "target: must be less than or equal to 1 (got 1.5)"),
        ({"nodes": 0}, "nodes: must be greater than 0 (got 0)"),
        ({"nodes": True}, "nodes: must be a number (got True)"),
        ({"seeds": True}, "seeds: must be a number (got True)"),
        ({"target": True}, "target: must be a number (got True)"),
        ({"cluster": {"tasks": True}}, "cluster.tasks: must be a number (got True)"),
        ({"cluster": {"cpu": True}}, "cluster.cpu: must be a number (got True)"),
        ({"master": "localhost:1"}, "a simulation runs in this process, not at a master"),
    ],
)
def test_parse_what_cannot_be_meant_is_refused(said: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        comparison(**said)
    assert error in str(raised.value)


def test_same_runs_more_seeds_and_another_target_are_the_same_runs() -> None:
    assert comparison(seeds=1, target=0.9).same_runs(comparison(seeds=5))
    assert comparison(settings={"lr": 0.1}).same_runs(comparison(settings={"lr": "0.1"}))
    assert not comparison(nodes=3).same_runs(comparison())
    assert not comparison(cluster=None).same_runs(comparison())


def test_read_comparison_finds_job_files_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "one.toml"
    path.write_text('variants.mine.job = "~/jobs/mine.py:build"')
    assert read_comparison(path).variants["mine"].job == f"{tmp_path}/jobs/mine.py:build"


def test_read_comparison_finds_job_files_from_its_own_folder(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text("""\
seeds = 2
[variants]
Ako = { job = "ako" }
mine = { job = "jobs/mine.py:build", settings = { radius = 2 } }
[cluster]
[sweep]
nodes = [2, 4]
""")
    read = read_comparison(path)
    jobs = {"Ako": "ako", "mine": f"{tmp_path}/jobs/mine.py:build"}
    assert {name: variant.job for name, variant in read.variants.items()} == jobs
    assert read.sweep == {"nodes": ("2", "4")}
    assert read.cluster == ClusterOptions()
    assert Comparison.model_validate_json(read.model_dump_json()) == read


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nodes = [", "the comparison cannot be read: "),
        ("[variants]\na = { job = 'ako' }\n[clutser]\n", "unknown key (got clutser) at "),
    ],
)
def test_read_comparison_of_a_wrong_file_names_it(text: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_comparison(path)
    assert error in str(raised.value)
    assert str(path) in str(raised.value)
