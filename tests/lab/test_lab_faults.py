"""Jobs in a lab bear a network that becomes slow and a host that is; nothing is lost by it, and users are told."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dataflow.clock import SystemClock
from dataflow.lab.cores import find_cpu_control
from dataflow.lab.lab import cut, find, mend
from tests.lab.conftest import Lab, read_until
from tests.lab.exact_job import digest_of_sum

HOSTS = range(4)
WAIT_S, POLL_S = 60.0, 1.0
"""Nodes tell once a second, and each look takes half a second of a processor that the hosts need."""


def measured(lab: Lab) -> dict[str, Any]:
    """The job that runs, as `ako lab status --json` shows it; nothing if none does yet."""
    output, errors = lab.start("status", "--json").communicate(timeout=60)
    jobs = json.loads(output)["jobs"] if output else pytest.fail(errors)
    return dict(jobs[0]) if jobs else {"conditions": [], "statistics": [], "slow": []}


def until(lab: Lab, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The job once it is as wanted."""
    clock = SystemClock()
    deadline_s = clock.now() + WAIT_S
    while not fits(job := measured(lab)):
        assert clock.now() < deadline_s, job
        clock.sleep(POLL_S)
    return job


def running_s(job: dict[str, Any]) -> float:
    """How long all nodes have run at least, by what they told last."""
    return float(min(each["running_s"] for each in job["statistics"]))


def spans(job: dict[str, Any]) -> list[float]:
    """Gradients of each node until all of a model is sent again: p, times those in a round."""
    return [each["p"] * each["every"] for each in job["conditions"]]


def settled(job: dict[str, Any]) -> bool:
    """Whether every node has measured itself for some seconds."""
    return len(job["statistics"]) == len(HOSTS) and running_s(job) >= 3.0


def resident_nbytes(lab: Lab) -> list[int]:
    """Memory of the job process on each host."""
    found = []
    for number in HOSTS:
        processes = lab.stations()[str(number)]["processes"]
        (process,) = [each["pid"] for each in processes if "dataflow.runtime.job_process" in each["command"]]
        status = Path(f"/proc/{process}/status").read_text()
        found.append(1024 * int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]))  # type: ignore[index]
    return found


def raised_s(record: dict[str, Any], begin_s: float) -> list[float]:
    """When, on the wall, each node first chose a longer span than before `begin_s`."""
    found = []
    for node in HOSTS:
        told = [each for each in record["reports"] if each["port"] == "partition.choices" and each["node"] == node]
        before = [each["span"] for each in told if each["wall_s"] < begin_s][-1]
        found.append(next(each["wall_s"] for each in told if each["wall_s"] > begin_s and each["span"] > before))
    return found


def test_cut_bandwidth_raises_p_or_r_and_loses_no_gradient_nor_memory(lab: Lab, tmp_path: Path) -> None:
    lab("up", "4", "--rate", "100mbit")
    process = lab.start("run", "tests.lab.exact_job:build", "--json", str(tmp_path / "record.json"))
    read_until(process.stderr, "RUNNING")
    before, nbytes = until(lab, settled), resident_nbytes(lab)
    begin_s = time.time()
    for number in HOSTS:
        lab("fault", "rate", str(number), "10mbit")
    fallen_s = time.time()
    after = until(lab, lambda job: all(span > was for span, was in zip(spans(job), spans(before), strict=True)))
    last = until(lab, lambda job: running_s(job) >= running_s(after) + 2.0)
    # 64 MB is what a stream may cost at most; here all streams of a process together do not.
    assert max(now - was for now, was in zip(resident_nbytes(lab), nbytes, strict=True)) <= 64e6
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors

    record: dict[str, Any] = json.loads((tmp_path / "record.json").read_text())
    assert max(raised_s(record, begin_s)) - fallen_s <= 10.0
    told = [point for point in record["series"] if point["time_s"] <= running_s(last)]  # about one in a second
    assert all(later["gradients"] > earlier["gradients"] for earlier, later in pairwise(told))
    ends = [each for each in record["reports"] if each["port"] == "tell.sums"]
    made = {each["node"]: each["made"] for each in ends}
    assert sorted(made) == [*HOSTS]
    wanted = digest_of_sum([made[node] for node in HOSTS])
    assert {(each["digest"], each["rejected"]) for each in ends} == {(wanted, 0)}


def test_slow_host_holds_others_within_the_staleness_bound_and_is_named(lab: Lab, tmp_path: Path) -> None:
    if find_cpu_control() is None:
        pytest.skip("this machine has no control groups that limit the CPU")
    lab("up", "4", "--rate", "1gbit", "--cpus", "0.6,0.6,0.6,0.15")
    tau, ends = 4, str(tmp_path / "record.json")
    process = lab.start("run", "ako", "epochs=100000", "warm_start=0", f"tau={tau}", "--json", ends)
    read_until(process.stderr, "RUNNING")
    job = until(lab, lambda job: any("node-3" in sentence for sentence in job["slow"]))
    nodes = [sentence for sentence in job["slow"] if sentence.startswith("node-")]
    assert all(sentence.startswith("node-3 is slow: it makes ") for sentence in nodes), nodes
    told, errors = lab.start("status").communicate(timeout=60)
    assert "node-3" in told, errors
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors

    record: dict[str, Any] = json.loads((tmp_path / "record.json").read_text())
    samples = [node["samples"] for node in record["nodes"]]
    p, every = (max(each[f"partition.{name}"]["maximum"] for each in samples) for name in ("p", "every"))
    # While p or the gradients of a round change, a cell may wait for its turn one round longer.
    for each in samples:
        assert 0 < each["compute.staleness"]["maximum"] <= p * every + every + tau


def test_slow_links_are_named_and_no_others(lab: Lab) -> None:
    lab("up", "4", "--rates", "100mbit,100mbit,100mbit,5mbit", "--cpu", "0.4")
    process = lab.start("run", "ako", "epochs=100000")
    read_until(process.stderr, "RUNNING")
    job = until(lab, lambda job: any("link" in sentence for sentence in job["slow"]))
    (links,) = [sentence for sentence in job["slow"] if "link" in sentence]
    assert re.match(r"the links? (from and to|to|from) node-3 carry |the link (node-3 -> |node-. -> node-3 )", links)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors


def test_host_that_only_the_master_does_not_hear_goes_on(lab: Lab, tmp_path: Path) -> None:
    lab("up", "3", "--rate", "1gbit")
    process = lab.start("run", "tests.lab.exact_job:build", "--json", str(tmp_path / "record.json"))
    read_until(process.stderr, "RUNNING")
    until(lab, lambda job: len(job["statistics"]) == 3)
    plan = find(tmp_path / "state")
    heard = measured(lab)
    # without the others' word a node is lost after 2 s, with it after 12: no command of ako comes between
    cut(plan.host(1), [plan.switch])
    SystemClock().sleep(7.0)
    mend(plan, plan.host(1), [plan.switch])
    assert measured(lab)["statistics"], "the job has ended"
    until(lab, lambda job: job["statistics"][1]["running_s"] > heard["statistics"][1]["running_s"] + 7.0)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    record: dict[str, Any] = json.loads((tmp_path / "record.json").read_text())
    assert record["state"] == "CANCELLED"
    assert not record["changes"], "a node was lost"
    sums = [each for each in record["reports"] if each["port"] == "tell.sums"]
    assert sorted(each["node"] for each in sums) == [0, 1, 2]
    assert len({each["digest"] for each in sums}) == 1
