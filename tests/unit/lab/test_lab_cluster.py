"""Where the processes of a job's cluster run."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataflow.errors import PlanError
from dataflow.lab import lab
from dataflow.lab.cluster import places
from dataflow.lab.cores import CpuControl
from dataflow.lab.plan import Host, LabPlan, enter_command

PLAN = LabPlan(name="ako-lab-12", hosts=(Host(rate=1e6), Host(rate=1e6, cores=0.5), Host(rate=1e6, cores=2.6)))


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "find_cpu_control", lambda: CpuControl(Path("/groups"), 1))


def test_places_put_node_i_on_host_i_and_the_master_at_the_switch() -> None:
    found = places(PLAN, 2, cores=8)
    assert list(found) == ["master", "node-0", "node-1"]
    assert [place.host for place in found.values()] == ["198.18.255.254", "198.18.0.1", "198.18.0.2"]
    assert found["master"].enter == enter_command(PLAN.switch, ())
    assert found["node-0"].enter == enter_command(PLAN.host(0), ())
    group = Path("/groups/ako-lab-12/host-1/cgroup.procs")
    assert found["node-1"].enter == enter_command(PLAN.host(1), (), group)


@pytest.mark.parametrize(("cores", "own"), [(8, [None, 1, 3]), (2, [None, 1, 2])])
def test_places_give_a_node_as_many_cores_as_its_host_has(cores: int, own: list[int | None]) -> None:
    found = places(PLAN, 3, cores=cores)
    assert [found[f"node-{number}"].cores for number in range(3)] == own


def test_places_of_more_nodes_than_hosts_are_refused() -> None:
    with pytest.raises(PlanError, match=r"a lab of 3 hosts cannot run the job's 4 nodes.*--nodes 3"):
        places(PLAN, 4, cores=2)
