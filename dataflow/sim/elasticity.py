"""Nodes that leave a simulated job and machines that join it, as declared, by the rules of a real cluster."""

from __future__ import annotations

from collections.abc import Callable

from dataflow.engine import coordination as co
from dataflow.engine.arriving import open_places
from dataflow.engine.coordinator import JobCoordinator
from dataflow.engine.draining import objection
from dataflow.engine.job_life import JobState
from dataflow.errors import ConfigError
from dataflow.plan.job import JobSpec, vacant_nodes
from dataflow.plan.physical import PhysicalPlan
from dataflow.sim.clock import VirtualClock
from dataflow.sim.faults import NodeJoins, NodeLeaves, check_joining
from dataflow.sim.lives import Lives
from dataflow.sim.model import ClusterModel


def as_simulated(spec: JobSpec, model: ClusterModel) -> JobSpec:
    """A job as it is simulated on a cluster: with places for others only if somebody joins.

    Raises:
        ConfigError: as for `ClusterModel.check`; or somebody is to join who cannot.
    """
    if not model.joining:
        spec = spec.model_copy(update={"max_nodes": None})
    elif spec.max_nodes is None:
        what = f"a node joins at second {model.joining[0].at_s:g}, and nobody may join this job"
        raise ConfigError(what, fix=f"set max_nodes={spec.nodes + len(model.joining)}, or have nobody join")
    model.check(spec.places)
    check_joining(model.faults, len(vacant_nodes(spec)))
    return spec


class Elasticity:
    """Who leaves and joins a job.

    Args:
        plan: of the job.
        clock: the clock.
        coordinator: the job's.
        lives: of its nodes.
        coordinate: gives the coordinator an event.
        warn: tells everybody of something that the job goes on without.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        clock: VirtualClock,
        coordinator: JobCoordinator,
        lives: Lives,
        coordinate: Callable[[co.Event], None],
        warn: Callable[[str], None],
    ) -> None:
        self._clock, self._coordinator, self._lives = clock, coordinator, lives
        self._coordinate, self._warn = coordinate, warn
        self._names = [node.name for node in plan.nodes]
        self._roles = plan.members()
        self._waiting = 0
        """Machines that wait for a place."""

    def declare(self, model: ClusterModel) -> None:
        """Have nodes leave and machines come when the model says so."""
        for each in model.faults:
            if isinstance(each, NodeLeaves):
                self._clock.at(each.at_s, self._drain, each.node)
            elif isinstance(each, NodeJoins):
                self._clock.at(each.at_s, self._come)

    def look_around(self) -> None:
        """Have machines that wait take the places that are open."""
        coordinator = self._coordinator
        while self._waiting and coordinator.state is JobState.RUNNING and not coordinator.stopped_by:
            places = open_places(coordinator.nodes, self._clock.now())
            if not places:
                return
            self._waiting -= 1
            self._lives.take(places[0])
            self._coordinate(co.NodeArrived(places[0], self._names[places[0]]))

    def _come(self, _: None) -> None:
        self._waiting += 1
        self.look_around()

    def _drain(self, node: int) -> None:
        """Have a node leave, unless that is refused, as it would be to whoever asks for it."""
        coordinator, why = self._coordinator, "it is not there"
        if self._lives.has_machine(node):
            why = coordinator.why_not_drained(node)
            why = why or objection(coordinator.nodes, node, self._names, self._roles)
        if why:
            self._warn(f"{self._names[node]} cannot leave: {why}")
        else:
            self._coordinate(co.DrainAsked(node))
