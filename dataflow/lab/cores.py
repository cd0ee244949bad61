"""Shares of the CPU: a control group for each host that has one, of version 1 or 2, whichever the machine uses."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from dataflow.clock import Clock
from dataflow.errors import LabError
from dataflow.runtime.control_groups import CpuHierarchy, find_cpu_hierarchy, words

PERIOD_US: Final = 20_000
"""Microseconds after which a host may use its share again; short, for a slow machine is slow all the time."""

_HANDED_DOWN: Final = "cgroup.subtree_control"
_GONE_S: Final = 5.0
_POLL_S: Final = 0.01


class CpuControl(CpuHierarchy):
    """Where this machine's control groups limit the CPU, and a lab's are made."""

    def group(self, lab: str, host: str) -> Path:
        """Folder of a host's control group."""
        return self.root / lab / f"host-{host}"

    def lends(self) -> bool:
        """Whether making a group hands the controller down from the root, which has not done so before."""
        return self.version == 2 and "cpu" not in words(self.root / _HANDED_DOWN)

    def take_back(self) -> None:
        """Hand the controller down no more, unless a group needs it by now: it has a limit, or the kernel refuses."""
        limits = (path.read_text() for path in self.root.glob("*/cpu.max"))
        if all(limit.startswith("max") for limit in limits):
            with suppress(OSError):
                (self.root / _HANDED_DOWN).write_text("-cpu")

    def make(self, lab: str, host: str, cores: float) -> None:
        """Make a host's control group.

        Raises:
            LabError: it cannot be made or written.
        """
        group, quota_us = self.group(lab, host), round(cores * PERIOD_US)
        try:
            group.parent.mkdir(exist_ok=True)
            if self.version == 2:
                for above in (self.root, group.parent):
                    (above / _HANDED_DOWN).write_text("+cpu")
            group.mkdir(exist_ok=True)
            if self.version == 2:
                (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
            else:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        except OSError as error:
            what = f"the CPU cannot be shared out: {error.strerror}"
            raise LabError(what, got=str(error.filename or group), fix="leave out --cpu and --cpus") from error

    def remove(self, lab: str, clock: Clock) -> None:
        """Remove all control groups of a lab, whose processes have been ended.

        Raises:
            LabError: one is still in use after some seconds.
        """
        above, deadline_s = self.root / lab, clock.now() + _GONE_S
        for group in (*sorted(above.glob("host-*")), above):
            while group.exists():
                # Processes that have ended leave their group a moment later.
                with suppress(OSError):
                    group.rmdir()
                    continue
                if clock.now() > deadline_s:
                    raise LabError(what="a control group of the lab cannot be removed", got=str(group))
                clock.sleep(_POLL_S)


def procs_file(group: Path) -> Path:
    """The file of a control group that takes the ids of processes."""
    return group / "cgroup.procs"


def find_cpu_control() -> CpuControl | None:
    """Where this machine's control groups limit the CPU; None if nowhere."""
    found = find_cpu_hierarchy()
    return None if found is None else CpuControl(found.root, found.version)
