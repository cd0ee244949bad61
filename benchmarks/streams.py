"""What our links carry: goodput and processor time of messages over them, against gRPC itself and against TCP.

    python benchmarks/streams.py [--rounds 5] [--seconds 1] [--json FILE]
    sudo python benchmarks/streams.py --lab 1gbit

A sender and a receiver, two processes for each kind of stream, which take turns, A B C A B C. The kinds:

links: `Links` over `GrpcNetwork` as in a job: messages are Fragments of Ako's, numbered, acknowledged, checked and
built again at the receiver, which grants credit as it takes them.

aio, threads: a bare client-streaming call of gRPC's asyncio API, on which ours is built, and of its API with threads,
of ready byte strings as long as a message's array, which the receiver drops.

aio-tuned, threads-tuned: the same with the environment of a job process, which has settings of gRPC and of the memory
allocator that were chosen for links (`dataflow.runtime.starting.PREFERRED`).

tcp: a bare TCP stream of such byte strings; with --lab only.

Goodput counts the arrays alone, from the first send to when the receiver has the last. The seconds of the processor are
those of both processes. Ratios are of pairs in one round. The better of the bare calls as gRPC comes is named, and the
better of the tuned ones. Without --lab both
processes are on this machine's loopback; with it, on two hosts of a lab of its own, whose links have that rate.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

from own_lab import own_lab

from dataflow.lab import lab
from dataflow.lab.plan import Host
from dataflow.quantities import bytes_per_second
from dataflow.runtime.starting import ONE_THREAD, PREFERRED

SIZES = {"1 MiB": 1 << 20, "64 KiB": 64 << 10, "4 KiB": 4 << 10}
FASTEST = {"1 MiB": 1.5e9, "64 KiB": 0.7e9, "4 KiB": 0.08e9}
"""Bytes per second, about, of a stream on loopback: how much to send so that it takes some time."""

TUNED = "-tuned"
BARE = ("aio", "threads")
ENDS = Path(__file__).resolve().with_name("stream_ends.py")


@dataclass(frozen=True)
class Transfer:
    """What one transfer took, in seconds; of the processor, at the sender and at the receiver."""

    kind: str
    size: str
    count: int
    nbytes: int
    wall_s: float
    sender_s: float
    receiver_s: float

    @property
    def goodput(self) -> float:
        """Bytes per second."""
        return self.count * self.nbytes / self.wall_s

    @property
    def cpu_s_per_gb(self) -> float:
        """Seconds of the processor for 10^9 bytes, of both ends."""
        return (self.sender_s + self.receiver_s) / (self.count * self.nbytes) * 1e9

    @property
    def messages_per_core_s(self) -> float:
        """Messages for each second of the processor, of both ends."""
        return self.count / (self.sender_s + self.receiver_s)


class Pair:
    """The two processes of a kind of stream.

    Args:
        kind: of stream; of bare calls, those that are tuned have a job's environment.
        host: address that the receiver listens on.
        enter: words before the commands of sender and receiver.
    """

    def __init__(self, kind: str, host: str, enter: Sequence[Sequence[str]]) -> None:
        self.kind = kind
        self._receiver = self._start(enter[1], "--host", host)
        address = _line(self._receiver).strip()
        self._sender = self._start(enter[0], "--address", address)
        _line(self._sender)

    def transfer(self, size: str, count: int) -> Transfer:
        """Send so many messages of a size."""
        nbytes = SIZES[size]
        for process in (self._receiver, self._sender):
            assert process.stdin is not None
            process.stdin.write(f"{count} {nbytes}\n")
            process.stdin.flush()
        (began_s, _, sender_s), (_, ended_s, receiver_s) = (
            map(float, _line(process).split()) for process in (self._sender, self._receiver)
        )
        return Transfer(self.kind, size, count, nbytes, ended_s - began_s, sender_s, receiver_s)

    def close(self) -> None:
        """End both processes."""
        for process in (self._sender, self._receiver):
            process.kill()
            process.communicate()

    def _start(self, enter: Sequence[str], *arguments: str) -> subprocess.Popen[str]:
        command = [*enter, sys.executable, str(ENDS), self.kind.removesuffix(TUNED), *arguments]
        preferred = {} if self.kind in BARE else PREFERRED
        environment = {**preferred, **os.environ, **ONE_THREAD}
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        message = f"a process of the benchmark ended: {process.args}"
        raise SystemExit(message)
    return line


@contextmanager
def places(rate: str) -> Iterator[tuple[str, tuple[Sequence[str], Sequence[str]]]]:
    """Where streams lead: the receiver's address, and what brings sender and receiver to their hosts."""
    if not rate:
        yield "127.0.0.1", ((), ())
        return
    with own_lab((Host(rate=bytes_per_second(rate)),) * 2) as (plan, _):
        sender, receiver = (lab.enter(plan, plan.host(number), ()) for number in range(2))
        yield plan.host(1).address, (sender, receiver)


def measure(options: argparse.Namespace) -> list[Transfer]:
    """All transfers, in rounds in which the kinds take turns; those of a first round are not counted."""
    kinds = ("links", *(("tcp",) if options.lab else ()), *BARE, *(f"{kind}{TUNED}" for kind in BARE))
    sizes = [size for size in SIZES if not options.lab or size != "4 KiB"]
    found = []
    with places(options.lab) as (host, enter), ExitStack() as stack:
        pairs = [Pair(kind, host, enter) for kind in kinds]
        for pair in pairs:
            stack.callback(pair.close)
        for size in sizes:
            rate = bytes_per_second(options.lab) if options.lab else FASTEST[size]
            count = max(1, round(options.seconds * rate / SIZES[size]))
            for number in range(-1, options.rounds):
                for pair in pairs:
                    transfer = pair.transfer(size, count if number >= 0 else max(1, count // 8))
                    if number >= 0:
                        found.append(transfer)
    return found


def spread(values: Iterable[float]) -> str:
    """Median and quartiles."""
    first, middle, third = quantiles(values, n=4, method="inclusive")
    return f"{middle:.3g} [{first:.3g}, {third:.3g}]"


def table(found: Sequence[Transfer]) -> list[str]:
    """A row for each size and kind, with the ratios of the links to it, pair by pair."""
    lines = [
        f"{'messages':9}{'stream':14}{'MB/s':>26}{'CPU s/GB':>22}{'messages/s/core':>28}"
        "   links / it: goodput, CPU per GB, messages per core"
    ]
    for size in dict.fromkeys(each.size for each in found):
        of = {
            kind: [each for each in found if (each.kind, each.size) == (kind, size)]
            for kind in dict.fromkeys(each.kind for each in found)
        }
        for kind, transfers in of.items():
            pairs = list(zip(of["links"], transfers, strict=True))
            ratios = (
                spread(ours.goodput / other.goodput for ours, other in pairs),
                spread(ours.cpu_s_per_gb / other.cpu_s_per_gb for ours, other in pairs),
                spread(ours.messages_per_core_s / other.messages_per_core_s for ours, other in pairs),
            )
            lines.append(
                f"{size:9}{kind:14}{spread(each.goodput / 1e6 for each in transfers):>26}"
                f"{spread(each.cpu_s_per_gb for each in transfers):>22}"
                f"{spread(each.messages_per_core_s for each in transfers):>28}"
                + ("" if kind == "links" else "   " + ", ".join(ratios))
            )
    return lines


def better(found: Sequence[Transfer], size: str, kinds: Iterable[str]) -> str:
    """The kind of bare call with the higher median of goodput."""
    rates = {kind: median(each.goodput for each in found if (each.kind, each.size) == (kind, size)) for kind in kinds}
    return max(rates, key=lambda kind: rates[kind])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", default="", metavar="RATE", help="between two hosts of a lab with links of this rate")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="about what a transfer takes")
    parser.add_argument("--json", type=Path, help="write everything there")
    options = parser.parse_args()
    found = measure(options)
    print("\n".join(table(found)))
    for size in dict.fromkeys(each.size for each in found):
        tuned = better(found, size, [f"{kind}{TUNED}" for kind in BARE])
        print(f"{size}: the better bare call is {better(found, size, BARE)}, and of those that are tuned {tuned}")
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
