"""What a client makes of a master's answers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from dataflow.runtime.client import Client
from dataflow.transport.generated import control_pb2 as pb
from dataflow.transport.generated.control_pb2_grpc import MasterServicer, add_MasterServicer_to_server


class Breaking(MasterServicer):
    """A master that keeps the newest lines of a job's log only, and goes away once it has told the first of them."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def GetJob(self, request: Any, context: Any) -> pb.GetJobReply:  # noqa: N802
        return pb.GetJobReply(status=pb.JobStatus(job=request.job, state="FAILED"))

    def Logs(self, request: Any, context: Any) -> Iterator[pb.LogsReply]:  # noqa: N802
        self.asked.append(request.since)
        if request.since <= 700:
            yield pb.LogsReply(lines=[pb.LogLine(text="700"), pb.LogLine(text="701")], next=702)
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        yield pb.LogsReply(lines=[pb.LogLine(text="702")], next=703)


def test_log_of_which_the_beginning_is_dropped_goes_on_after_a_break_with_the_line_that_comes_next() -> None:
    master, server = Breaking(), grpc.server(ThreadPoolExecutor(2))
    add_MasterServicer_to_server(master, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with Client(f"127.0.0.1:{port}", "token") as client:
            assert [line.text for line in client.logs("job")] == ["700", "701", "702"]
    finally:
        server.stop(None).wait()
    assert master.asked == [0, 702]
