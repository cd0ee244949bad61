"""Ako jobs in a lab: they end, their traffic crosses the emulated network, and a killed host is noticed."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from dataflow.clock import SystemClock
from tests.lab.conftest import Lab, read_until

ENDLESS = "epochs=100000"


def test_job_of_three_hosts_ends_and_its_streams_are_what_the_interfaces_count(lab: Lab, tmp_path: Path) -> None:
    lab("up", "3", "--rate", "100mbit")
    process = lab.start("run", "all_to_all", "epochs=1", "warm_start=0", "--json", str(tmp_path / "record.json"))
    _, errors = process.communicate(timeout=110)
    assert process.returncode == 0, errors
    record: dict[str, Any] = json.loads((tmp_path / "record.json").read_text())
    assert (record["state"], record["stopped_by"]) == ("FINISHED", "epochs")
    assert [node["name"] for node in record["nodes"]] == ["node-0", "node-1", "node-2"]
    stations = lab.stations()
    for number, node in enumerate(record["nodes"]):
        counted = stations[str(number)]
        # Beside a stream's bytes: up to 66 of headers for each 1448, frames, acknowledgements, what the master is told.
        assert 1.0 <= counted["sent_nbytes"] / node["sent_nbytes"] <= 1.15
        assert 1.0 <= counted["received_nbytes"] / node["received_nbytes"] <= 1.15
    assert sum(node["sent_nbytes"] for node in record["nodes"]) > 10e6
    assert json.loads(lab("status", "--json"))["jobs"] == []
    assert all(station["processes"] == [] for station in stations.values())


def test_job_that_needs_all_nodes_fails_when_a_host_is_killed_and_names_the_node(lab: Lab) -> None:
    lab("up", "2", "--rate", "1gbit")
    process = lab.start("run", "ako", ENDLESS, "min_nodes=2")
    read_until(process.stderr, "RUNNING")
    assert "the lab is in use" in lab("up", "2", status=2)
    assert "ako lab down --force" in lab("down", status=2)
    lab("fault", "kill", "1")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "node-1" in errors.splitlines()[-1]
    assert all(station["processes"] == [] for station in lab.stations().values())


def test_down_by_force_ends_the_job_and_who_started_it(lab: Lab) -> None:
    lab("up", "2", "--rate", "1gbit")
    process = lab.start("run", "ako", ENDLESS)
    read_until(process.stderr, "RUNNING")
    # The client, a master, and on each host an agent, what job processes are forked from, and one of them.
    assert "removed 3 namespaces and ended 8 processes" in lab("down", "--force")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert "no lab is up" in lab("status", status=2)


def test_job_killed_leaves_no_process_and_a_lab_that_can_be_made_anew(lab: Lab) -> None:
    lab("up", "2", "--rate", "1gbit")
    process = lab.start("run", "ako", ENDLESS)
    read_until(process.stderr, "RUNNING")
    assert (
        len(lab.stations()["0"]["processes"]) == 3
    )  # an agent, what it has job processes forked from, and one of them
    process.kill()
    process.communicate()
    clock = SystemClock()
    deadline_s = clock.now() + 30
    while any(station["processes"] for station in lab.stations().values()):
        assert clock.now() < deadline_s
        clock.sleep(0.05)
    assert "removed what was there: 3 namespaces, 0 processes" in lab("up", "2")
