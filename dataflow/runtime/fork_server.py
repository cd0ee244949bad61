"""The process that job processes are forked from: one for each agent, with everything imported that they will need.

A new process imports for a second and more before it can do anything. This one has done that when it is asked, and so
have its forks. It runs no user code: it imports what plans name, but nothing of a job's bundle. Invariant: it has one
thread and one socket, and so holds no lock and no connection that a fork would share; where that is not so any more, or
a file has changed since it was imported, the fork begins as a new program. A module whose import starts a thread or
opens a file is told to the agent instead, which starts the jobs that need it by itself.

A fork becomes a child of the agent, which is the one that waits for it: the process between the two ends at once, and
the kernel gives its child to the agent, which has asked for that (`Spawner`). So nothing depends on this process, and
it may end at any time.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import Final

from dataflow.clock import SystemClock
from dataflow.runtime import job_process
from dataflow.runtime.forking import Imported, become, shared
from dataflow.runtime.process import die_with_parent
from dataflow.runtime.starting import module_command

REQUEST_NBYTES: Final = 64 << 10
"""Largest request, in bytes."""

_JOB_PROCESS: Final = "dataflow.runtime.job_process"
_BECOMES_OURS_S: Final = 0.0005


class ForkServer:
    """Answers requests for forks.

    Args:
        asked: a request comes as one packet: JSON of ``arguments`` of the job process, ``modules`` that it will
            import, and ``own``, the names of packages that its bundle has; with the descriptors of its connection to
            the agent, of its page of memory, of what it prints to, and of a pipe. The answer is JSON: its ``process``
            id, an ``error``, or the name of the module that is ``unfit`` to be imported ahead. Before it the name of
            each module is said that it ``imports``, and an empty one in the end, so that the agent knows at which it
            has stopped. A fork waits until the agent writes to the pipe, and ends where the agent closes that: one
            that nobody knows of does nothing.
        imported: what this process has imported already.
    """

    def __init__(self, asked: socket.socket, imported: Imported) -> None:
        self._asked, self._imported = asked, imported
        self._shared = shared()

    def serve(self) -> list[str] | None:
        """Answer until the agent hangs up, or forks would be of no use any more.

        Returns:
            None; in each fork the arguments of `job_process.main`.
        """
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._asked, REQUEST_NBYTES, 4)
            if not data:
                return None
            request = json.loads(data)
            for name in request["modules"]:
                if name in sys.modules:
                    continue
                before = shared()
                self._answer(imports=name)
                self._imported.add(name)
                if shared() > before:
                    self._answer(unfit=name)
                    return None
            self._answer(imports="")
            self._imported.warm_up()
            spoilt = shared() > self._shared + len(descriptors) or self._imported.has_changed()
            as_it_is = not spoilt and not any(name in sys.modules for name in request["own"])
            try:
                arguments = self._fork(request["arguments"], descriptors, as_it_is=as_it_is)
            except OSError as error:
                self._answer(error=str(error))
            else:
                if arguments is not None or spoilt:
                    return arguments
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork(self, arguments: Sequence[str], descriptors: Sequence[int], *, as_it_is: bool) -> list[str] | None:
        """Fork twice and say what has come of it; returns the arguments in the fork, and None here."""
        reading, writing = os.pipe()
        try:
            between = os.fork()
        except OSError:
            for descriptor in (reading, writing):
                os.close(descriptor)
            raise
        if not between:
            try:
                _fork_and_end(writing)
                os.close(reading)
                self._asked.close()
                return _become(arguments, descriptors, as_it_is=as_it_is)
            except BaseException:  # nothing of a fork goes on as a second server
                traceback.print_exc()
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        os.waitpid(between, 0)  # now its child is the agent's
        self._answer(**json.loads(said or b'{"error": "the process that was to fork a job process has died"}'))
        return None

    def _answer(self, **answer: object) -> None:
        self._asked.send(json.dumps(answer).encode())


def _fork_and_end(writing: int) -> None:
    """Return in a fork of this process, with a session of its own and a child of the agent, which has said so."""
    between = os.getpid()
    try:
        forked = os.fork()
    except OSError as error:
        os.write(writing, json.dumps({"error": str(error)}).encode())
        os._exit(1)
    if forked:
        os._exit(0)
    while os.getppid() == between:
        SystemClock().sleep(_BECOMES_OURS_S)
    os.setsid()
    os.write(writing, json.dumps({"process": os.getpid()}).encode())
    os.close(writing)


def _become(arguments: Sequence[str], descriptors: Sequence[int], *, as_it_is: bool) -> list[str]:
    """Make a job process of this one; returns its arguments, unless it has to begin as a new program."""
    control, board, printed, wanted = descriptors
    if not os.read(wanted, 1):
        os._exit(0)
    os.close(wanted)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    words = [*arguments, "--control-fd", str(control), "--board-fd", str(board)]
    command = [*module_command(_JOB_PROCESS), *words]
    if not as_it_is:
        for descriptor in (control, board):
            os.set_inheritable(descriptor, True)
    become(command, printed, as_it_is=as_it_is)
    return words


def main() -> int:
    """Run a fork server, and in each fork a job process; started by an agent only."""
    parser = argparse.ArgumentParser(prog="python -m dataflow.runtime.fork_server", description=__doc__)
    parser.add_argument("--agent", type=int, required=True, help="process id of the agent")
    parser.add_argument("--asked-fd", type=int, required=True, help="where the agent asks for forks")
    parser.add_argument("--room", default="", help="for the command lines of forks")
    options = parser.parse_args()
    die_with_parent(options.agent)
    return run(socket.socket(fileno=options.asked_fd), Imported())


def run(asked: socket.socket, imported: Imported) -> int:
    """Be a fork server, and in each fork a job process; see `ForkServer`. Returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    arguments = ForkServer(asked, imported).serve()
    if arguments is None:
        return 0
    sys.argv[1:] = arguments
    return job_process.main()


if __name__ == "__main__":
    sys.exit(main())
