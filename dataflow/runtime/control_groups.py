"""Control groups that limit the CPU: where they are on this machine, and what they leave to this process."""

from __future__ import annotations

import math
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_MOUNTS, _OWN = Path("/proc/self/mounts"), Path("/proc/self/cgroup")


@dataclass(frozen=True)
class CpuHierarchy:
    """The hierarchy of control groups that has the CPU controller.

    Args:
        root: where it is mounted.
        version: of control groups, 1 or 2.
    """

    root: Path
    version: int

    def limit(self, group: Path) -> float | None:
        """Processors that the processes of a group may use together; None if that is not limited, or not known."""
        with suppress(OSError, ValueError):
            if self.version == 2:
                quota, period = (group / "cpu.max").read_text().split()
                return None if quota == "max" else int(quota) / int(period)
            quota_us = int((group / "cpu.cfs_quota_us").read_text())
            return None if quota_us < 0 else quota_us / int((group / "cpu.cfs_period_us").read_text())
        return None

    def group_of(self, listed: str) -> Path:
        """Folder of a process's group, from its list in the form of ``/proc/self/cgroup``."""
        for line in listed.splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0" if self.version == 2 else "cpu" in controllers.split(","):
                return self.root / path.lstrip("/")
        return self.root


def find_cpu_hierarchy(mounts: Path = _MOUNTS) -> CpuHierarchy | None:
    """Where the CPU can be limited; None if nowhere. The controller is in one hierarchy only.

    Args:
        mounts: the list of what is mounted, in the form of ``fstab``.
    """
    for line in mounts.read_text().splitlines():
        _device, place, kind, options, *_ = line.split()
        root = Path(_unescaped(place))
        if kind == "cgroup" and "cpu" in options.split(","):
            return CpuHierarchy(root, 1)
        if kind == "cgroup2" and "cpu" in words(root / "cgroup.controllers"):
            return CpuHierarchy(root, 2)
    return None


def cpu_share(mounts: Path = _MOUNTS, own: Path = _OWN) -> float | None:
    """Processors whose time the control groups of this process leave to it; None if they limit nothing.

    In a container the list of own groups may tell their paths outside it, which are not mounted: then the limit of the
    hierarchy's root is the container's.
    """
    with suppress(OSError):
        hierarchy = find_cpu_hierarchy(mounts)
        if hierarchy is not None:
            group = hierarchy.group_of(own.read_text())
            groups = [each for each in (group, *group.parents) if each.is_relative_to(hierarchy.root)]
            limits = [limit for each in groups if (limit := hierarchy.limit(each)) is not None]
            return min(limits, default=None)
    return None


def usable_cores() -> int:
    """Processors that this process may use at once, by its affinity and its control groups; 1 at least."""
    allowed, share = len(os.sched_getaffinity(0)), cpu_share()
    return allowed if share is None else max(1, min(allowed, math.ceil(share)))


def words(path: Path) -> list[str]:
    """The words of a control file; none if there is no such file."""
    with suppress(OSError):
        return path.read_text().split()
    return []


def _unescaped(text: str) -> str:
    """Blanks and backslashes stand in the list as their octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
