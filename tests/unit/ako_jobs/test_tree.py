"""Settings of tree jobs: what does not go together, and topologies that do not fit the nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ako_jobs import tree
from ako_jobs.jobs import load_job, prepare
from dataflow.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"topology": "ring"}, "there is no such topology"),
        ({"consistency": "bsp", "n_sync": 2}, "bsp pushes every gradient"),
        ({"consistency": "bsp", "waves": "root"}, "leave out waves=root"),
        ({"consistency": "bsp", "flow": "period"}, "leave out flow=period"),
        ({"consistency": "ssp", "bound": 2, "n_sync": 3}, "use bound=3 or more"),
        ({"period": "2s"}, "add flow=period"),
        ({"bound": 2}, "bound is for consistency=ssp and assp"),
        ({"flow": "period", "period": "often"}, "written like 1s or 100ms"),
        ({"flow": "period", "period": "0s"}, "written like 1s or 100ms"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tree.Config.parse(settings)


def test_job_with_a_topology_that_leaves_a_node_out_is_refused_before_it_starts(tmp_path: Path) -> None:
    path = tmp_path / "three.txt"
    path.write_text("0 1\n1 2\n")
    job, settings = load_job("tree"), {"topology": str(path)}
    assert prepare(job, settings, 3).spec.nodes == 3
    with pytest.raises(ConfigError, match="no edges lead from node 0 to 3"):
        prepare(job, settings, 4)
    with pytest.raises(ConfigError, match="names a node that does not exist"):
        prepare(job, settings, 2)


@pytest.mark.parametrize(
    ("consistency", "rate"), [("bsp", "of the mean gradient of 4 workers"), ("eventual", "4 workers x lr 0.02")]
)
def test_effective_rate_of_a_tree_is_of_the_mean_in_rounds_only(consistency: str, rate: str) -> None:
    (warning,) = prepare(load_job("tree"), {"consistency": consistency}, 4).spec.warnings
    assert rate in warning
