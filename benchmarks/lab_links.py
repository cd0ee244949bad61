"""What the links of a lab carry, and what a round trip takes: one TCP stream and small UDP packets between two hosts.

    sudo python benchmarks/lab_links.py [--rates 1mbit 10mbit ...] [--latency TIME] [--seconds 3]

The stream's rate counts from before it is connected to its last byte, payload only. With --latency, and no netem in the
kernel, packets pass relays; what those take of the processor is measured too. Each lab is one of its own, and removed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import median

from own_lab import own_lab

from dataflow.clock import SystemClock
from dataflow.lab import lab
from dataflow.lab.plan import Command, Host, LabPlan, Station
from dataflow.lab.processes import processes
from dataflow.quantities import bytes_per_second, duration
from dataflow.testing.probes import ASK, ECHO, RECEIVE, SEND


def stream(plan: LabPlan, nbytes: int) -> float:
    """Bytes per second of a stream from host 0 to host 1; both read the machine's one monotonic clock."""
    address = plan.host(1).address
    receiver = served(plan, plan.host(1), RECEIVE)
    began = float(subprocess.check_output(python(plan, plan.host(0), SEND, address, str(nbytes))))
    said, _ = receiver.communicate()
    return nbytes / (float(said.split()[1]) - began)


def round_trip_s(plan: LabPlan) -> float:
    """Median of round trips of packets of one byte."""
    echo = served(plan, plan.host(1), ECHO)
    said = subprocess.check_output(python(plan, plan.host(0), ASK, plan.host(1).address, "200"))
    echo.kill()
    echo.communicate()
    return median(map(float, said.split()))


def served(plan: LabPlan, station: Station, program: str) -> subprocess.Popen[bytes]:
    """A program that runs at a station and listens at its address."""
    process = subprocess.Popen(python(plan, station, program, station.address), stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def python(plan: LabPlan, station: Station, program: str, *arguments: str) -> Command:
    return lab.enter(plan, station, (sys.executable, "-c", program, *arguments))


def relays_cpu_s(plan: LabPlan) -> float:
    """Seconds of the processor that the relays have taken; in /proc they are hundredths."""
    fields = [Path(f"/proc/{each}/stat").read_text().rpartition(")")[2] for each in processes(plan.switch.namespace)]
    return sum(int(each.split()[11]) + int(each.split()[12]) for each in fields) / 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", nargs="+", default=["1mbit", "10mbit", "20mbit", "100mbit", "1gbit"])
    parser.add_argument("--latency", default="")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long a stream takes")
    options = parser.parse_args()
    clock = SystemClock()
    for text in options.rates:
        rate, latency_s = bytes_per_second(text), duration(options.latency) if options.latency else 0.0
        with own_lab((Host(rate=rate),) * 2, latency_s) as (plan, _):
            trip_s = round_trip_s(plan)
            before_s, began_s = relays_cpu_s(plan), clock.now()
            carried = stream(plan, round(options.seconds * rate))
            busy = (relays_cpu_s(plan) - before_s) / (clock.now() - began_s)
        print(
            f"{text:>8}: {carried * 8e-6:8.3f} Mbit/s, {carried / rate:.1%} of it; round trip {trip_s * 1e3:.3f} ms; "
            f"relays use {busy:.2f} cores"
        )


if __name__ == "__main__":
    main()
