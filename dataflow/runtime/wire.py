"""Control messages to and from the values that the rest of the program uses. Imports no NumPy."""

from __future__ import annotations

import json

from dataflow.engine.membership import Members
from dataflow.errors import WireError
from dataflow.observe.events import AdjustmentStep, JobEvent, NodeChange
from dataflow.reports import LinkStatistics, NodeStatistics, OperatorReport, ProcessorTimes, SampleStatistics
from dataflow.transport.channels import channel_options
from dataflow.transport.generated import control_pb2 as pb

CHUNK_NBYTES = 64 << 10
"""Largest piece of a file in one message, in bytes: heartbeats wait behind it."""

MESSAGE_NBYTES = 64 << 20
"""Largest control message accepted, in bytes: a bundle, a plan and room."""

CHANNEL_OPTIONS = (
    *channel_options(MESSAGE_NBYTES, connecting_ms=3000),
    # Whoever waits for a master that was restarted must not wait for long after it is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
"""Of every connection to a master."""


def report_to_wire(report: OperatorReport) -> pb.OperatorReport:
    """The control message of a report."""
    return pb.OperatorReport(port=report.port, fields_json=json.dumps(report.fields).encode())


def report_from_wire(message: pb.OperatorReport) -> OperatorReport:
    """The report of a control message.

    Raises:
        WireError: its fields are no JSON object of scalars.
    """
    try:
        fields = json.loads(message.fields_json)
    except ValueError as error:
        raise WireError(what="a report's fields are not JSON", got=message.fields_json, where=message.port) from error
    scalars = (bool, int, float, str, type(None))
    if not isinstance(fields, dict) or not all(isinstance(value, scalars) for value in fields.values()):
        raise WireError(what="a report's fields are not an object of scalars", got=fields, where=message.port)
    return OperatorReport(message.port, fields)


def may_tell_of_change(message: pb.OperatorReport) -> bool:
    """Whether a report may be one of a change of the running job, for whose word others wait: it must not be lost.

    That is found out without reading it; see `dataflow.engine.adjusting.tells_of_change`.
    """
    return b'"adjustment"' in message.fields_json


def statistics_to_wire(statistics: NodeStatistics) -> pb.NodeStatistics:
    """The control message of a node's statistics."""
    cpu = statistics.processor
    return pb.NodeStatistics(
        node=statistics.node,
        steps=statistics.steps,
        tasks=statistics.tasks,
        busy_s=statistics.busy_s,
        waiting_s=statistics.waiting_s,
        sent_nbytes=statistics.sent_nbytes,
        received_nbytes=statistics.received_nbytes,
        samples={
            name: pb.SampleStatistics(count=sample.count, total=sample.total, maximum=sample.maximum, last=sample.last)
            for name, sample in statistics.samples.items()
        },
        running_s=statistics.running_s,
        compute_tasks=statistics.compute_tasks,
        processor=pb.ProcessorTimes(process=cpu.process, compute=cpu.compute, exchange=cpu.exchange) if cpu else None,
        links_busy_s=statistics.links_busy_s,
        links={
            peer: pb.LinkStatistics(
                nbytes=link.nbytes, messages=link.messages, busy_s=link.busy_s, delay_s=link.delay_s
            )
            for peer, link in statistics.links.items()
        },
        incarnation=statistics.incarnation,
    )


def statistics_from_wire(message: pb.NodeStatistics) -> NodeStatistics:
    """The node's statistics of a control message, their mappings sorted by key."""
    cpu = message.processor
    return NodeStatistics(
        node=message.node,
        steps=message.steps,
        tasks=message.tasks,
        busy_s=dict(sorted(message.busy_s.items())),
        waiting_s=message.waiting_s,
        sent_nbytes=dict(sorted(message.sent_nbytes.items())),
        received_nbytes=dict(sorted(message.received_nbytes.items())),
        samples={
            name: SampleStatistics(sample.count, sample.total, sample.maximum, sample.last)
            for name, sample in sorted(message.samples.items())
        },
        running_s=message.running_s,
        compute_tasks=message.compute_tasks or 1,  # statistics kept by an earlier version do not have it
        processor=ProcessorTimes(cpu.process, cpu.compute, cpu.exchange) if message.HasField("processor") else None,
        links_busy_s=message.links_busy_s if message.HasField("links_busy_s") else None,
        links={
            peer: LinkStatistics(link.nbytes, link.messages, link.busy_s, link.delay_s)
            for peer, link in sorted(message.links.items())
        },
        incarnation=message.incarnation,
    )


def members_to_wire(members: Members, answers: int = 0) -> pb.Connect:
    """The control message of a membership, which answers a pause of that number and those before it."""
    return pb.Connect(
        addresses=members.addresses,
        epoch=members.epoch,
        incarnations=members.incarnations,
        answers=answers,
        ended=sorted(members.ended),
    )


def members_from_wire(message: pb.Connect) -> Members:
    """The membership of a control message."""
    return Members(message.epoch, dict(message.incarnations), dict(message.addresses), frozenset(message.ended))


def change_from_wire(message: pb.NodeChange) -> NodeChange:
    """What has become of a node, of a control message."""
    return NodeChange(message.node, message.life, message.incarnation, message.reason, message.wall_s, message.name)


def event_from_wire(message: pb.JobEvent) -> JobEvent:
    """The event of a control message.

    Raises:
        WireError: it has no body.
    """
    match message.WhichOneof("body"):
        case "state":
            return JobEvent(
                message.index,
                message.wall_s,
                message.elapsed_s,
                state=message.state.state,
                reason=message.state.reason,
                stopped_by=message.state.stopped_by,
            )
        case "report":
            return JobEvent(
                message.index,
                message.wall_s,
                message.elapsed_s,
                node=message.report.node,
                report=report_from_wire(message.report.report),
            )
        case "statistics":
            statistics = statistics_from_wire(message.statistics)
            return JobEvent(
                message.index, message.wall_s, message.elapsed_s, node=statistics.node, statistics=statistics
            )
        case "change":
            return JobEvent(
                message.index,
                message.wall_s,
                message.elapsed_s,
                node=message.change.node,
                change=change_from_wire(message.change),
            )
        case "adjustment":
            told = message.adjustment
            adjustment = AdjustmentStep(
                told.number, told.stage, told.reason, tuple(told.touched), told.inside_s, told.outside_s
            )
            return JobEvent(message.index, message.wall_s, message.elapsed_s, adjustment=adjustment)
        case "warning":
            return JobEvent(message.index, message.wall_s, message.elapsed_s, warning=message.warning.text)
        case "master_away":
            away = (message.master_away.from_s, message.master_away.to_s)
            return JobEvent(message.index, message.wall_s, message.elapsed_s, master_away=away)
        case _:
            raise WireError(what="an event has no body", fix="run the same version of ako everywhere")
