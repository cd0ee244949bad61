"""What job processes say, in the master: what becomes of each message in its job."""

from __future__ import annotations

from dataflow.engine import coordination as co
from dataflow.engine.adjusting import tells_of_change
from dataflow.errors import MasterError
from dataflow.runtime.job_run import JobRun
from dataflow.runtime.store import Store
from dataflow.runtime.wire import may_tell_of_change, report_from_wire, statistics_from_wire
from dataflow.transport.generated import control_pb2 as pb

_PASSING = frozenset({"statistics", "report", "artifact", "checkpoint"})


def passes(message: pb.AgentMessage) -> bool:
    """Whether the job comes to the same without a message, should the machine lose what was not synchronised."""
    said = message.from_process.message
    if said.HasField("report") and may_tell_of_change(said.report):
        return False
    return message.WhichOneof("body") == "log_lines" or said.WhichOneof("body") in _PASSING


def relay(message: pb.ProcessMessage, run: JobRun, node: int, store: Store, now_s: float) -> None:
    """Give a job what a process of it says.

    Args:
        message: what it says.
        run: the job.
        node: the number of its node.
        store: keeps artifacts.
        now_s: the time, in seconds on the master's clock.

    Raises:
        WireError: the message is not what it should be.
    """
    match message.WhichOneof("body"):
        case "prepared":
            run.feed(co.NodePrepared(node, message.prepared.address))
        case "ready":
            run.feed(co.NodeReady(node))
        case "report" if not run.ended:
            report = report_from_wire(message.report)
            if not tells_of_change(report):
                run.news.report(node, message.report)
            run.feed(co.NodeReport(node, report))
        case "checkpoint" if not run.ended:
            run.checkpoint(node, message.checkpoint)
        case "artifact" if not run.ended:  # the rest of one that could not be kept would look whole
            try:
                store.write_artifact(run.id, node, message.artifact)
            except MasterError as error:
                run.news.lose(node, message.artifact.name, str(error))
        case "statistics" if not run.ended:
            message.statistics.node = node
            _see(run, message.statistics, now_s)
            run.news.statistics(message.statistics, final=False)
        case "ended" if not run.ended:
            message.ended.statistics.node = node
            run.news.statistics(message.ended.statistics, final=True)
            ended = message.ended
            run.feed(co.NodeEnded(node, statistics_from_wire(ended.statistics), ended.epoch))
        case "link_broken":
            broken = message.link_broken
            run.feed(co.LinkBroken(node, broken.peer, broken.reason, broken.incarnation))
        case "paused":
            run.feed(co.NodePaused(node, message.paused.number))
        case "failed":
            failed = message.failed
            run.feed(co.NodeFailed(node, failed.text, failed.where, failed.anew, failed.checkpoint))


def _see(run: JobRun, statistics: pb.NodeStatistics, now_s: float) -> None:
    """Nodes that another one has received something of since it told the last time were alive then."""
    told = run.news.told.newest(statistics.node)
    before = told.received_nbytes if told else {}
    then_s = run.news.told.told_s.get(statistics.node, now_s)
    for peer, nbytes in statistics.received_nbytes.items():
        if nbytes > before.get(peer, 0) and peer in run.sessions:
            run.sessions[peer].seen_s = max(run.sessions[peer].seen_s, then_s)
