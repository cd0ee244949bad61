"""The process that the processes of local clusters are forked from: master and agents, each with its fork server.

Each of them would import for a second by itself, and mostly the same. This one imports that once, with what the
clusters' jobs will need, but nothing of a job's bundle. Invariant: it has one thread and one socket; where it has more,
since a module that it was told to import has seen to that, or where a file has changed since, each fork begins as a new
program.

Forks are its children; it waits for them when it is asked, and they die with it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dataflow.runtime import agent, fork_server
from dataflow.runtime.forking import Imported, become, shared
from dataflow.runtime.process import die_with_parent
from dataflow.runtime.spawning import Serving
from dataflow.runtime.starting import module_command

REQUEST_NBYTES: Final = 64 << 10
"""Largest request, in bytes."""

_AGENT: Final = agent.__name__


class Program(NamedTuple):
    """A module that is run as a program.

    Args:
        module: its name.
        arguments: of its command line.
    """

    module: str
    arguments: Sequence[str]


class Zygote:
    """Answers requests for forks, and what has become of them.

    Args:
        asked: a request comes as one packet: JSON of ``module`` and ``arguments`` of a program, and of modules that are
            to be imported ``ahead``, with the descriptor of what it prints to; the answer is its ``process`` id, or an
            ``error``. Or it is JSON of ``ended``, the id of such a process: the answer is its ``status``, as
            `subprocess.Popen.returncode` would have it. Then the id is free for others. Requests have a ``number``, and
            so have their answers.
        imported: what this process has imported already.
    """

    def __init__(self, asked: socket.socket, imported: Imported) -> None:
        self._asked, self._imported = asked, imported
        self._tried: set[str] = set()
        self._is_fit = True
        self._statuses: dict[int, int] = {}

    def import_all(self, modules: Iterable[str]) -> None:
        """Import what has not been tried before; whether forks can do with that is found out."""
        new = [name for name in modules if name not in self._tried]
        if not new:
            return
        self._tried.update(new)
        before = shared()
        for name in new:
            self._imported.add(name)
        self._imported.warm_up()
        self._is_fit = self._is_fit and shared() == before and len(os.listdir("/proc/self/task")) == 1

    def serve(self) -> Program | None:
        """Answer until nobody asks any more.

        Returns:
            None; in each fork what that is to be.
        """
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._asked, REQUEST_NBYTES, 1)
            if not data:
                return None
            request = json.loads(data)
            if "ended" in request:
                self._answer(request, status=self._status(request["ended"]))
                continue
            self.import_all(request["ahead"])
            self._is_fit = self._is_fit and not self._imported.has_changed()
            ours = os.getpid()
            try:
                forked = os.fork()
            except OSError as error:
                self._answer(request, error=str(error))
            else:
                if not forked:
                    return self._become(Program(request["module"], request["arguments"]), descriptors, ours)
                self._statuses.pop(forked, None)  # of an earlier one with this id
                self._answer(request, process=forked)
            for descriptor in descriptors:
                os.close(descriptor)

    def _answer(self, request: Mapping[str, Any], **answer: object) -> None:
        self._asked.send(json.dumps({"number": request["number"], **answer}).encode())

    def _status(self, process: int) -> int | None:
        """How a fork has ended; None while it has not."""
        if process not in self._statuses:
            try:
                pid, status = os.waitpid(process, os.WNOHANG)
            except ChildProcessError:  # where ends of children are ignored, nobody knows
                pid, status = process, 0
            if not pid:
                return None
            self._statuses[process] = os.waitstatus_to_exitcode(status)
        return self._statuses[process]

    def _become(self, program: Program, descriptors: Sequence[int], parent: int) -> Program:
        """Make another process of this fork, with a session of its own."""
        try:
            (printed,) = descriptors
            die_with_parent(parent)
            self._asked.close()
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            words = [*module_command(program.module), *program.arguments]
            become(words, printed, as_it_is=self._is_fit)
        except BaseException:  # nothing of a fork goes on as a second zygote
            traceback.print_exc()
            os._exit(1)
        return program


def _be(program: Program, imported: Imported) -> int:
    """Be a master or an agent; returns the exit status."""
    sys.argv = [sys.argv[0], *program.arguments]
    if program.module != _AGENT:
        status: int = importlib.import_module(program.module).main()
        return status
    # Forked now, as long as there is one thread.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    try:
        forked = os.fork()
    except OSError:  # the agent will start one, or say why it cannot
        ours.close()
        theirs.close()
        return agent.main()
    if forked:
        theirs.close()
        return agent.main(Serving(forked, ours))
    die_with_parent(parent)
    ours.close()
    become([*module_command(fork_server.__name__), "--agent", str(parent)])
    return fork_server.run(theirs, imported)


def main() -> int:
    """Run a zygote, and in each fork a process of the cluster; started by a local cluster only."""
    parser = argparse.ArgumentParser(prog="python -m dataflow.runtime.zygote", description=__doc__)
    parser.add_argument("--cluster", type=int, required=True, help="process id of what makes clusters")
    parser.add_argument("--asked-fd", type=int, required=True, help="where forks are asked for")
    parser.add_argument("--room", default="", help="for the command lines of forks")
    parser.add_argument("modules", nargs="*", help="to be imported ahead")
    options = parser.parse_args()
    die_with_parent(options.cluster)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    imported = Imported()
    zygote = Zygote(socket.socket(fileno=options.asked_fd), imported)
    zygote.import_all(["dataflow.runtime.master", *options.modules])
    program = zygote.serve()
    return 0 if program is None else _be(program, imported)


if __name__ == "__main__":
    sys.exit(main())
