"""The `ako` command: finds the verb's module, runs it, turns errors into one line and an exit code.

Exit codes: 0 all well, 1 what was asked for was begun and did not succeed, such as a job that failed, 2 bad input, or
not possible on this machine (nothing was started), 130 ended by Ctrl-C, 143 and 129 by SIGTERM and SIGHUP.
Invariant: a verb's module is imported only when that verb is called, so that light verbs stay light.
"""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version

from dataflow.errors import AkoError, ConfigError, suggest
from dataflow.runtime.signals import ended_in_order
from dataflow.runtime.starting import ONE_THREAD

TRACEBACK_VARIABLE = "AKO_TRACEBACK"
"""Environment variable: if it is set, errors show where in the program they arose."""

VERBS: dict[str, tuple[str, str]] = {
    "run": ("train", "run a job here, or at a master, and follow it"),
    "compare": ("compare", "run several jobs and put what came out side by side"),
    "replay": ("replay", "make a recorded run again, and compare"),
    "submit": ("train", "put a job into a master's queue"),
    "resume": ("resume", "go on from a checkpoint of a job"),
    "check": ("graphs", "check a job without running it; list its settings"),
    "plan": ("graphs", "show what would run where: text, Mermaid, DOT or JSON"),
    "ls": ("jobs", "list the jobs of a master"),
    "status": ("jobs", "show a job, or the nodes of a master"),
    "logs": ("jobs", "show what a job's processes print"),
    "cancel": ("jobs", "stop a job"),
    "topology": ("topology", "change the tree of a running job"),
    "master": ("master", "start a master"),
    "node": ("node", "attach this machine to a master"),
    "token": ("access", "print a token that nodes or clients need; make certificates"),
    "lab": ("lab", "emulate a cluster on this machine: hosts, shaped links, faults"),
    "chaos": ("chaos", "run a job in the lab while faults befall it, and check what came of that"),
    "data": ("data", "list data sets and fetch them"),
    "predict": ("model", "classify images with a trained model"),
    "doctor": ("doctor", "check this machine"),
}
"""Module and one line of help of every verb."""

_HELP = """usage: ako VERB [arguments]

Train deep networks on ordinary machines and networks.

verbs:
{verbs}

Each verb says more: ako run --help

examples:
  ako run ako --nodes 4                        four processes on this machine, the digits of the package
  ako run ako data=mnist lr=0.05 target=0.99   with settings; ako check ako --settings lists them
  ako run my_job.py --nodes 2 --out results    your own job
  ako plan parameter_server --nodes 8          what would run where

exit codes: 0 all well, 1 a job failed or was cancelled, or what else was begun did not succeed, 2 bad input or not
possible here (nothing was started), 130 Ctrl-C
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        arguments: those of the process if left out.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    # So that the interpreter does not look through all that was imported at its end, for 0.4 s after `ako run`.
    atexit.register(gc.freeze)
    # Before anything loads NumPy: both BLAS libraries read these once.
    os.environ.update(ONE_THREAD)
    # gRPC tells of every connection that breaks; what matters of that, the verbs say.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        return _run(given)
    except AkoError as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        # Nobody reads on. What is left of the output goes nowhere when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except PermissionError as error:
        if error.filename is None or os.environ.get(TRACEBACK_VARIABLE):
            raise
        what = f"a file or folder may not be used: {error.strerror}"
        fix = "name another one, or have its owner let you"
        print(f"error: {ConfigError(what, where=os.fsdecode(error.filename), fix=fix)}", file=sys.stderr)
        return ConfigError.exit_code
    except OSError as error:
        if error.errno != errno.ENOSPC or os.environ.get(TRACEBACK_VARIABLE):
            raise
        print(f"error: cannot write {error.filename or 'the output'}: {error.strerror}; free some", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(given: list[str]) -> int:
    verb = given[0] if given else "--help"
    if verb in ("-h", "--help", "help"):
        verbs = "\n".join(f"  {name:9}{line}" for name, (_module, line) in VERBS.items())
        print(_HELP.format(verbs=verbs), end="", flush=True)
        return 0
    if verb == "--version":
        print(f"ako {version('ako-dataflow')}", flush=True)
        return 0
    if verb not in VERBS:
        raise ConfigError(what="there is no such verb", got=verb, fix=suggest(verb, VERBS))
    module = importlib.import_module(f"dataflow.cli.{VERBS[verb][0]}")
    usage = importlib.import_module("dataflow.cli.usage")
    try:
        with ended_in_order():
            code: int = usage.call(module.app, given)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return code


if __name__ == "__main__":
    sys.exit(main())
