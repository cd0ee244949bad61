"""A cluster on this machine: one master and several agents, real processes, gone when the ``with`` block ends.

Invariant: no process of the cluster outlives the process that made it, however that ends. The kernel sees to it
(parent-death signal), so the thread that enters the ``with`` block must be the one that leaves it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final, Self

from dataflow.clock import Clock, SystemClock
from dataflow.errors import CheckpointError, ConfigError, DataError, GraphError, MasterError, PlanError
from dataflow.runtime import threads
from dataflow.runtime.auth import AUTHORITY_VARIABLE, TOKEN_VARIABLE, read_authority, read_token
from dataflow.runtime.client import Client
from dataflow.runtime.cluster_processes import ClusterProcess, Nursery
from dataflow.runtime.control_groups import usable_cores
from dataflow.runtime.scratch import Scratch
from dataflow.runtime.starting import module_command
from dataflow.runtime.state_dir import read_endpoint

PATIENCE_S = 30.0
"""Seconds for which the cluster's client waits for a master that has died."""

START_S = 60.0
"""Seconds within which all processes must be there."""

MASTER, STATE_DIR = "dataflow.runtime.master", "--state-dir"
"""Two words of the command line of a cluster's master; the second comes before the path of its state directory."""

_POLL_S = 0.01
_LEAVE_S = 3.0


@dataclass(frozen=True)
class Place:
    """Where a process of the cluster runs.

    Args:
        host: address that it listens on.
        enter: words before its command that bring it there and keep its process id; none: it runs beside its parent.
        cores: that it may use, if it is a node's agent; None: as many as the others.
        insecure: let it listen although others can reach the address.
    """

    host: str = "127.0.0.1"
    enter: tuple[str, ...] = ()
    cores: int | None = None
    insecure: bool = False


_REFUSALS: Final = (ConfigError, CheckpointError, DataError, GraphError, PlanError)


class LocalCluster:
    """One master and `nodes` agents on this machine: ``with LocalCluster(nodes=4) as cluster: cluster.client...``.

    Args:
        nodes: number of agents.
        tasks: compute tasks of each node; one for each core that it has: ``max(1, cores // nodes)``, if left out.
        state_dir: where the master's state and every process's log are kept; if left out, a temporary directory that
            is removed afterwards unless the ``with`` block raised an `Exception`; if this process is killed, by the
            next one that makes a cluster.
        clock: the clock.
        places: of processes that do not run beside this one, by their names: ``master``, ``node-0``, ...
        ahead: modules that its jobs will import, and no user code: processes that run beside this one have them then.
        nursery: what those are forked from; if left out, one of its own. It outlives the cluster.

    Attributes:
        client: a client of the master, while inside the ``with`` block.
        state_dir: the directory; ``logs/`` in it has one file per process.
    """

    client: Client
    state_dir: Path

    def __init__(
        self,
        nodes: int = 1,
        tasks: int | None = None,
        *,
        state_dir: Path | None = None,
        clock: Clock | None = None,
        places: Mapping[str, Place] | None = None,
        ahead: Sequence[str] = (),
        nursery: Nursery | None = None,
    ) -> None:
        self.nodes = nodes
        self._cores, self._tasks = max(1, usable_cores() // max(1, nodes)), tasks
        self._given = state_dir
        self._scratch = Scratch("cluster")
        self._clock = clock or SystemClock()
        self._places = places or {}
        self._ahead = ahead
        self._shared_nursery = nursery
        self._nursery: Nursery | None = None
        self._processes: dict[str, ClusterProcess] = {}

    def __enter__(self) -> Self:
        self.state_dir = self._given or self._scratch.path
        try:
            self._start()
        except BaseException as error:  # Ctrl-C too must leave no process behind: there is no __exit__ after this
            self._stop()
            self._tidy(error)
            raise
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, *_traceback: object) -> None:
        try:
            self.client.close()
        finally:
            self._stop()
            self._tidy(error)

    def processes(self) -> dict[str, int]:
        """Process ids by name: ``master``, ``node-0``, ..."""
        return {name: process.pid for name, process in self._processes.items()}

    def restart_master(self) -> None:
        """Start a master in place of the one that has died, at the same address; returns before it serves.

        Like the others it goes with the cluster.
        """
        self._processes["master"].wait()
        self._spawn("master", MASTER, "--port", self.client.address.rpartition(":")[2])

    def log(self, name: str) -> str:
        """What a process of the cluster has printed."""
        return (self.state_dir / "logs" / f"{name}.log").read_text(errors="replace")

    def _start(self) -> None:
        threads.require(threads.of_a_cluster(self.nodes), f"a cluster of {self.nodes} nodes on this machine")
        self.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.state_dir / "logs").mkdir(exist_ok=True)
        self._nursery = self._shared_nursery or Nursery(self._clock)
        # What an earlier master left behind would send the agents to the wrong port.
        (self.state_dir / "endpoint").unlink(missing_ok=True)
        self._spawn("master", MASTER, "--port", "0")
        for index in range(self.nodes):
            name = f"node-{index}"
            words = ["--name", name, "--cores", str(self._place(name).cores or self._cores)]
            words += ["--tasks", str(self._tasks)] if self._tasks else []
            self._spawn(name, "dataflow.runtime.agent", *words)
        deadline = self._clock.now() + START_S
        self.client = Client(
            self._until_listening(deadline),
            read_token(self.state_dir),
            read_authority(self.state_dir),
            patience_s=PATIENCE_S,
            clock=self._clock,
        )
        while len(self.client.nodes()) < self.nodes:
            self._check(deadline)

    def _place(self, name: str) -> Place:
        return self._places.get(name, Place())

    def _spawn(self, name: str, module: str, *arguments: str) -> None:
        place = self._place(name)
        common = [STATE_DIR, str(self.state_dir.absolute()), "--host", place.host]
        if place.insecure:
            common.append("--insecure")
        with (self.state_dir / "logs" / f"{name}.log").open("ab", buffering=0) as log:
            self._processes[name] = self._start_at(place, name, module, [*common, *arguments], log)

    def _start_at(self, place: Place, name: str, module: str, words: Sequence[str], log: FileIO) -> ClusterProcess:
        if place.enter:
            # The cluster has a token of its own; that of another one, for the user's other commands, is not for it.
            foreign = {TOKEN_VARIABLE, AUTHORITY_VARIABLE}
            return subprocess.Popen(
                [*place.enter, *module_command(module), *words, "--die-with", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={key: value for key, value in os.environ.items() if key not in foreign},
                # Ctrl-C in the terminal is for the parent alone, which then takes the cluster down in order.
                start_new_session=True,
            )
        assert self._nursery is not None
        try:
            return self._nursery.start(module, words, log, self._ahead)
        except OSError as error:
            what = f"{name} of the local cluster cannot be started: {error}"
            fix = "if memory or processes have run out, use fewer nodes or end other programs"
            raise MasterError(what, where=str(self.state_dir), fix=fix) from error

    def _until_listening(self, deadline: float) -> str:
        while not (address := read_endpoint(self.state_dir)):
            self._check(deadline)
        return address

    def _check(self, deadline: float) -> None:
        """Wait a moment.

        Raises:
            MasterError: a process has ended, or the time is over.
        """
        for name, process in self._processes.items():
            if process.poll() is not None:
                said = self.log(name) or ("" if self._nursery is None else self._nursery.said)
                what = f"{name} of the local cluster ended with status {process.returncode}: {said[-2000:]}"
                raise MasterError(what, where=str(self.state_dir))
        if self._clock.now() > deadline:
            raise MasterError(what=f"the local cluster did not start in {START_S:g} s", where=str(self.state_dir))
        self._clock.sleep(_POLL_S)

    def _tidy(self, error: BaseException | None) -> None:
        """Remove the folder; if something went wrong, which is more than to be told to end, that can be looked into.

        Nothing has where a job was refused.
        """
        if isinstance(error, Exception) and not isinstance(error, _REFUSALS):
            self._scratch.keep()
        else:
            self._scratch.close()

    def _stop(self) -> None:
        """End agents, then the master; whoever stays is killed."""
        try:
            for process in reversed(self._processes.values()):
                process.terminate()
            deadline = self._clock.now() + _LEAVE_S
            for process in self._processes.values():
                try:
                    process.wait(timeout=max(0.0, deadline - self._clock.now()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        finally:
            for process in self._processes.values():
                process.kill()
            if self._nursery is not None and self._shared_nursery is None:
                self._nursery.close()
