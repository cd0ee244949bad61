"""What a simulation assumes about machines, network and faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from dataflow.errors import ConfigError
from dataflow.sim.faults import ByteRate, Duration, Factor, Fault, Moment, NodeJoins, check_faults

Compute = Literal["measured", "constant", "gamma", "gamma-heterogeneous"]

MOST_TASKS = 1024
"""No machine that a gradient is divided on has more cores."""


class ClusterModel(BaseModel):
    """The cluster that a job is simulated on.

    Args:
        rate: bytes per second of every node's link, up and down alike; from 1 to 1e15.
        rates: those of nodes whose links differ.
        latency_s: seconds from one node's link to another's.
        shares: how what goes to several nodes at once shares a link: ``even``, or ``tcp``, as unevenly as connections
            do whose windows differ; see `dataflow.sim.network`.
        compute: how long tasks take: as measured on this machine, or only gradients take time: all alike
            (``constant``), gamma-distributed, or that on machines whose means are gamma-distributed too.
        step_s: seconds of a node's gradient on one compute task; as measured if None. Must be None if `compute` is
            ``measured``.
        speeds: by node, how many times as fast as the others it is.
        tasks: compute tasks of every node, up to `MOST_TASKS`, and its cores, which tasks of its network pool borrow.
        cpu: seconds of processor time that every node may use in a second, as a control group's quota: in slices, and
            on one core more than it has tasks; None: as much as its cores have. See `dataflow.sim.machine`.
        cores: those of the one machine that all nodes share; None: each has its own.
        slice_s: seconds from the begin of one slice to that of the next; nodes begin theirs at different times.
        faults: what happens to nodes and links, and which nodes leave and join.
        engine_s: seconds that a node's engine takes for each task, on the core that the task runs on. Measured if
            `compute` is ``measured``, else 0.
        message_s: seconds of a core that a node takes for each message to another that it sends, or that it receives:
            for packing, the connection and threads that wake each other. Measured if `compute` is ``measured``, else 0.
        byte_s: seconds that it takes besides for each byte of such a message; measured as `message_s` is.
        variation: coefficient of variation of the times that a node's gradients take, if `compute` is ``measured``;
            measured as well.
        detection_s: seconds from a node's failure until the coordinator knows.
        statistics_s: seconds between two statistics of every node.
        rates_s: seconds between two measurements that nodes make of themselves, if an operator minds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rate: ByteRate = 125e6
    rates: Mapping[NonNegativeInt, ByteRate] = {}
    latency_s: Moment = 100e-6
    shares: Literal["even", "tcp"] = "even"
    compute: Compute = "measured"
    step_s: Duration | None = None
    speeds: Mapping[NonNegativeInt, Factor] = {}
    tasks: Annotated[int, Field(ge=1, le=MOST_TASKS)] = 1
    cpu: Annotated[float, Field(ge=0.001, le=MOST_TASKS)] | None = None
    cores: Annotated[int, Field(ge=1, le=MOST_TASKS)] | None = None
    slice_s: Duration = 0.02
    faults: tuple[Fault, ...] = ()
    engine_s: Moment = 0.0
    message_s: Moment = 0.0
    byte_s: Moment = 0.0
    variation: Annotated[float, Field(ge=0, le=1)] = 0.0
    detection_s: Moment = 0.5
    statistics_s: Duration = 1.0
    rates_s: Duration = 0.5

    def check(self, nodes: int) -> None:
        """Nothing, if it is about that many nodes.

        Raises:
            ConfigError: it names a node that does not exist, or a step's time though steps are measured.
        """
        check_faults(self.faults, nodes, self.detection_s)
        for what, numbers in (("bandwidth", self.rates), ("speed", self.speeds)):
            unknown = [number for number in numbers if number >= nodes]
            if unknown:
                raise ConfigError(
                    what=f"a {what} is given for a node that does not exist",
                    got=unknown[0],
                    fix=f"nodes: 0 to {nodes - 1}",
                )
        if self.compute == "measured" and self.step_s is not None:
            raise ConfigError(
                what="the time of a step is both measured and given",
                got=self.step_s,
                fix="use compute=constant or gamma",
            )

    @property
    def joining(self) -> tuple[NodeJoins, ...]:
        """Who joins."""
        return tuple(each for each in self.faults if isinstance(each, NodeJoins))

    def rates_of(self, nodes: int) -> list[float]:
        """Bytes per second of each node's link."""
        return [self.rates.get(node, self.rate) for node in range(nodes)]
