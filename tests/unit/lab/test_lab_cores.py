"""Control groups of both versions, in folders that stand for the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataflow.clock import SystemClock
from dataflow.errors import LabError
from dataflow.lab.cores import CpuControl, procs_file


@pytest.mark.parametrize(
    ("version", "handed", "lends"), [(2, "memory pids\n", True), (2, "cpu memory\n", False), (1, "", False)]
)
def test_lends_where_the_root_has_not_handed_the_cpu_down(
    tmp_path: Path, version: int, handed: str, lends: bool
) -> None:
    (tmp_path / "cgroup.subtree_control").write_text(handed)
    assert CpuControl(tmp_path, version).lends() == lends


@pytest.mark.parametrize(("limit", "handed"), [("max 100000\n", "-cpu"), ("20000 100000\n", "cpu")])
def test_take_back_leaves_the_cpu_to_a_group_that_has_a_limit(tmp_path: Path, limit: str, handed: str) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu")
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "cpu.max").write_text(limit)
    CpuControl(tmp_path, 2).take_back()
    assert (tmp_path / "cgroup.subtree_control").read_text() == handed


def test_make_version_1_gives_half_of_every_period(tmp_path: Path) -> None:
    control = CpuControl(tmp_path, 1)
    control.make("lab", "3", 0.5)
    group = control.group("lab", "3")
    assert group == tmp_path / "lab" / "host-3"
    assert (group / "cpu.cfs_period_us").read_text() == "20000"
    assert (group / "cpu.cfs_quota_us").read_text() == "10000"
    assert procs_file(group) == group / "cgroup.procs"


def test_make_version_2_hands_the_controller_down_and_gives_two_cores(tmp_path: Path) -> None:
    control = CpuControl(tmp_path, 2)
    control.make("lab", "0", 2)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert (tmp_path / "lab" / "cgroup.subtree_control").read_text() == "+cpu"
    assert (control.group("lab", "0") / "cpu.max").read_text() == "40000 20000"


def test_make_where_nothing_can_be_written_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "lab").write_text("in the way")
    with pytest.raises(LabError, match=r"the CPU cannot be shared out.*leave out --cpu and --cpus"):
        CpuControl(tmp_path, 1).make("lab", "0", 0.5)


def test_remove_takes_the_groups_of_one_lab(tmp_path: Path) -> None:
    for name in ("lab/host-0", "lab/host-11", "other/host-0"):
        (tmp_path / name).mkdir(parents=True)
    CpuControl(tmp_path, 1).remove("lab", SystemClock())
    assert not (tmp_path / "lab").exists()
    assert (tmp_path / "other" / "host-0").exists()
    CpuControl(tmp_path, 1).remove("lab", SystemClock())


class Hurried:
    """A clock on which every moment is a second."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        self.time_s += 1
        return self.time_s

    def wall(self) -> float:
        return self.time_s

    def sleep(self, duration_s: float) -> None:
        """Do not wait."""


def test_remove_a_group_that_stays_in_use_is_an_error(tmp_path: Path) -> None:
    busy = tmp_path / "lab" / "host-0" / "used"
    busy.mkdir(parents=True)
    with pytest.raises(LabError, match=r"cannot be removed.*host-0"):
        CpuControl(tmp_path, 1).remove("lab", Hurried())
