"""The job process: the engine, the operators and the user's code of one job on one node.

The only process that unpacks bundles and imports user code. It never outlives its agent.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import mmap
import signal
import socket
import sys
import traceback
from pathlib import Path

from dataflow.clock import SystemClock
from dataflow.engine.resumption import Resumption
from dataflow.errors import AkoError, in_words
from dataflow.plan.physical import PhysicalPlan
from dataflow.runtime import descriptors, threads
from dataflow.runtime.bundle import Bundle, unpack
from dataflow.runtime.job_relay import Driver, JobRelay, Report
from dataflow.runtime.node_driver import NodeDriver
from dataflow.runtime.process import die_with_parent, first_when_memory_runs_out
from dataflow.runtime.watchdog import PAGE_NBYTES, TaskBoard
from dataflow.transport.encryption import KeyPair
from dataflow.transport.generated import control_pb2 as pb
from dataflow.transport.grpc_connection import GrpcNetwork

SWITCH_S = 0.0005
"""Seconds a thread keeps the interpreter: hand-offs between tasks wait this long at most for a busy one."""


class Explain:
    """Puts errors into words for the master.

    Args:
        folder: where the bundle was unpacked; left out of the paths shown, which then are as in the user's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, error: Exception) -> tuple[str, str]:
        """Text and place (operator and ``file:line``) of an error."""
        if isinstance(error, AkoError):
            if error.__cause__ is not None:
                traceback.print_exception(error.__cause__)
            return self._shorten(str(error)), self._shorten(error.where)
        traceback.print_exception(error)
        frames = traceback.extract_tb(error.__traceback__)
        users = [frame for frame in frames if Path(frame.filename).is_relative_to(self._folder)] or frames
        where = f"{users[-1].filename}:{users[-1].lineno}" if users else ""
        return self._shorten(f"{type(error).__name__}: {in_words(error)}"), self._shorten(where)

    def _shorten(self, text: str) -> str:
        return text.replace(f"{self._folder}/", "")


async def serve(control: socket.socket, board: TaskBoard, folder: Path, cores: int) -> bool:
    """Serve one control connection; returns whether all went well."""
    networks: list[GrpcNetwork] = []

    def make_driver(deploy: pb.Deploy, report: Report) -> Driver:
        plan = PhysicalPlan.model_validate_json(deploy.plan_json)
        needed = descriptors.OF_OPERATORS + descriptors.OF_A_PEER * (len(plan.nodes) - 1)
        who = f"node {plan.nodes[deploy.node].name}, one of {len(plan.nodes)} nodes of a job,"
        descriptors.require(needed, who)
        threads.require(threads.OF_A_JOB_PROCESS, who)
        if deploy.bundle:
            unpack(Bundle(deploy.bundle_digest, deploy.bundle), folder)
            sys.path.insert(0, str(folder))
        pair = KeyPair(deploy.certificate, deploy.key) if deploy.certificate else None
        network = GrpcNetwork(token=deploy.token, host=deploy.host, pair=pair)
        networks.append(network)
        return NodeDriver(
            plan,
            deploy.node,
            job=deploy.job,
            incarnation=deploy.incarnation,
            network=network,
            clock=SystemClock(),
            report=report,
            board=board,
            cores=cores,
            watchdog_s=deploy.watchdog_s or None,
            bundle_digest=deploy.bundle_digest,
            record=deploy.record,
            resumption=Resumption.model_validate_json(deploy.resumption_json) if deploy.resumption_json else None,
        )

    reader, writer = await asyncio.open_connection(sock=control)
    try:
        return await JobRelay(reader, writer, make_driver, Explain(folder)).run()
    finally:
        for network in networks:
            await network.close()


def main() -> int:
    """Run a job process; started by an agent only."""
    parser = argparse.ArgumentParser(prog="python -m dataflow.runtime.job_process", description=__doc__)
    parser.add_argument("--parent", type=int, required=True, help="process id of the agent")
    parser.add_argument("--control-fd", type=int, required=True, help="the connection to the agent")
    parser.add_argument(
        "--board-fd", type=int, required=True, help="memory file on which the agent reads what this process does"
    )
    parser.add_argument("--folder", type=Path, required=True, help="empty private folder for the bundle")
    parser.add_argument("--cores", type=int, default=1, help="processors that the node may use")
    options = parser.parse_args()
    die_with_parent(options.parent)
    first_when_memory_runs_out()  # its agent tells of its end, and has other jobs
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    sys.setswitchinterval(SWITCH_S)
    descriptors.raise_limit()
    board = TaskBoard(mmap.mmap(options.board_fd, PAGE_NBYTES))
    control = socket.socket(fileno=options.control_fd)
    went_well = asyncio.run(serve(control, board, options.folder, options.cores))
    return 0 if went_well else 1


if __name__ == "__main__":
    sys.exit(main())
