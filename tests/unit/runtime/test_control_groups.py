"""Control groups of both versions, in folders that stand for the kernel's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dataflow.runtime import control_groups
from dataflow.runtime.control_groups import CpuHierarchy, cpu_share, find_cpu_hierarchy, usable_cores


def mounts(folder: Path, *lines: str) -> Path:
    path = folder / "mounts"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def own(folder: Path, *lines: str) -> Path:
    path = folder / "own"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def version_1(root: Path, groups: dict[str, int]) -> Path:
    """A hierarchy whose groups have quotas of a period of 100 ms."""
    for group, quota_us in groups.items():
        folder = root / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.cfs_quota_us").write_text(f"{quota_us}\n")
        (folder / "cpu.cfs_period_us").write_text("100000\n")
    return mounts(root, f"cgroup {root} cgroup rw,cpu,cpuacct 0 0")


def version_2(root: Path, groups: dict[str, str]) -> Path:
    root.mkdir(exist_ok=True)
    (root / "cgroup.controllers").write_text("cpuset cpu io\n")
    for group, limit in groups.items():
        (root / group).mkdir(parents=True, exist_ok=True)
        (root / group / "cpu.max").write_text(f"{limit}\n")
    return mounts(root, f"cgroup2 {root} cgroup2 rw 0 0")


def test_find_cpu_hierarchy_version_1_beside_a_version_2_without_cpu(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory pids\n")
    found = find_cpu_hierarchy(
        mounts(
            tmp_path,
            "proc /proc proc rw 0 0",
            "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0",
            f"cgroup2 {tmp_path} cgroup2 rw 0 0",
            "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,cpu,cpuacct 0 0",
        )
    )
    assert found == CpuHierarchy(Path("/sys/fs/cgroup/cpu,cpuacct"), 1)


def test_find_cpu_hierarchy_version_2(tmp_path: Path) -> None:
    assert find_cpu_hierarchy(version_2(tmp_path, {})) == CpuHierarchy(tmp_path, 2)


def test_find_cpu_hierarchy_nowhere_is_none(tmp_path: Path) -> None:
    lines = (f"cgroup2 {tmp_path} cgroup2 rw 0 0", "cgroup /sys/fs/cgroup/cpuacct cgroup rw,cpuacct 0 0")
    assert find_cpu_hierarchy(mounts(tmp_path, *lines)) is None


def test_find_cpu_hierarchy_at_a_place_with_blanks_reads_their_numbers(tmp_path: Path) -> None:
    line = r"cgroup /my\040control\011groups\134cpu cgroup rw,cpu 0 0"
    assert find_cpu_hierarchy(mounts(tmp_path, line)) == CpuHierarchy(Path("/my control\tgroups\\cpu"), 1)


@pytest.mark.parametrize(
    ("groups", "listed", "share"),
    [
        ({"": -1, "pod": -1, "pod/container": 40_000}, "4:cpu,cpuacct:/pod/container", 0.4),
        ({"": -1, "pod": 50_000, "pod/container": 150_000}, "4:cpu,cpuacct:/pod/container", 0.5),
        ({"": -1, "pod": 250_000}, "4:cpu,cpuacct:/pod", 2.5),
        ({"": -1, "pod": -1}, "4:cpu,cpuacct:/pod", None),
        ({"": 30_000}, "4:cpu,cpuacct:/kubepods/of-the-host", 0.3),
        ({"": -1, "pod": 40_000}, "4:cpuset:/pod", None),
    ],
)
def test_cpu_share_version_1_is_the_least_of_a_group_and_those_above(
    tmp_path: Path, groups: dict[str, int], listed: str, share: float | None
) -> None:
    found = cpu_share(version_1(tmp_path, groups), own(tmp_path, "9:pids:/elsewhere", listed, "0::/unified"))
    assert found == share


@pytest.mark.parametrize(
    ("groups", "listed", "share"),
    [
        ({"slice": "max 100000", "slice/job": "20000 50000"}, "0::/slice/job", 0.4),
        ({"slice": "30000 100000", "slice/job": "max 100000"}, "0::/slice/job", 0.3),
        ({"slice": "max 100000"}, "0::/slice", None),
        ({"": "150000 100000"}, "0::/", 1.5),
        ({"slice": "garbage"}, "0::/slice", None),
    ],
)
def test_cpu_share_version_2(tmp_path: Path, groups: dict[str, str], listed: str, share: float | None) -> None:
    assert cpu_share(version_2(tmp_path, groups), own(tmp_path, "1:cpu:/other", listed)) == share


def test_cpu_share_without_control_groups_or_proc_is_none(tmp_path: Path) -> None:
    assert cpu_share(mounts(tmp_path, "proc /proc proc rw 0 0"), own(tmp_path, "0::/")) is None
    assert cpu_share(tmp_path / "missing", tmp_path / "missing too") is None


@pytest.mark.parametrize(("share", "cores"), [(None, 4), (0.2, 1), (1.0, 1), (1.2, 2), (64.0, 4)])
def test_usable_cores_are_as_many_as_affinity_and_share_allow(
    monkeypatch: pytest.MonkeyPatch, share: float | None, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 1, 2, 3})
    monkeypatch.setattr(control_groups, "cpu_share", lambda: share)
    assert usable_cores() == cores
