from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dataflow.errors import MasterError
from dataflow.observe.condition import MeasuredJob
from dataflow.reports import LinkStatistics, NodeStatistics, ProcessorTimes, SampleStatistics
from dataflow.runtime import metrics
from dataflow.runtime.metrics import served

BEFORE = NodeStatistics(0, running_s=1.0, links={1: LinkStatistics(100, 2, 0.5, 1.0)})
NEWEST = NodeStatistics(
    0,
    steps=40,
    busy_s={"compute": 1.5, "network": 9.0},
    waiting_s=0.25,
    sent_nbytes={1: 500},
    received_nbytes={1: 600},
    samples={
        "partition.p": SampleStatistics(2, 5.0, 3.0, 3.0),
        "compute.staleness": SampleStatistics(2, 5.0, 4.0, 1.0),
        "compute.noise": SampleStatistics(2, 5.0, 4.0, 1.0),
    },
    running_s=2.0,
    processor=ProcessorTimes(2.5, 1.25, 0.75),
    links_busy_s=0.75,
    links={1: LinkStatistics(400, 5, 0.75, 1.5)},
)
JOB = MeasuredJob("3f2a", "ako", ("left", "right"), {0: [BEFORE, NEWEST], 1: [NodeStatistics(1, running_s=2.0)]})


def scraped(*jobs: MeasuredJob) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every series of a scrape by its name and the values of its labels."""

    async def go() -> str:
        async with served("127.0.0.1", 0, lambda: jobs) as address:
            return await asyncio.to_thread(get, f"http://{address}/metrics")

    families = text_string_to_metric_families(asyncio.run(go()))
    return {(each.name, tuple(each.labels.values())): each.value for family in families for each in family.samples}


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def test_scrape_tells_what_the_nodes_of_a_job_measured() -> None:
    left, right = ("3f2a", "ako", "left"), ("3f2a", "ako", "right")
    pair = (*left, "right")
    assert scraped(JOB) == {
        ("ako_gradients_total", left): 40.0,
        ("ako_gradients_total", right): 0.0,
        ("ako_poisoned_total", left): 0.0,
        ("ako_poisoned_total", right): 0.0,
        ("ako_running_seconds_total", left): 2.0,
        ("ako_running_seconds_total", right): 2.0,
        ("ako_computing_seconds_total", left): 1.5,
        ("ako_computing_seconds_total", right): 0.0,
        ("ako_blocked_seconds_total", left): 0.25,
        ("ako_blocked_seconds_total", right): 0.0,
        ("ako_cpu_seconds_total", left): 2.5,
        ("ako_exchange_cpu_seconds_total", left): 0.75,
        ("ako_idle_seconds", left): 0.25,
        ("ako_idle_seconds", right): 2.0,
        ("ako_compute_tasks", left): 1.0,
        ("ako_compute_tasks", right): 1.0,
        ("ako_incarnation", left): 0.0,
        ("ako_incarnation", right): 0.0,
        ("ako_sample", (*left, "partition", "p")): 3.0,
        ("ako_sample", (*left, "compute", "staleness")): 1.0,
        ("ako_sent_bytes_total", pair): 500.0,
        ("ako_received_bytes_total", pair): 600.0,
        ("ako_delivered_bytes_total", pair): 400.0,
        ("ako_link_busy_seconds_total", pair): 0.75,
        ("ako_delay_seconds_count", pair): 5.0,
        ("ako_delay_seconds_sum", pair): 1.5,
        ("ako_goodput_bytes_per_second", pair): 1200.0,
    }


def test_scrape_without_jobs_has_no_series() -> None:
    assert scraped() == {}


def test_port_that_is_taken_is_refused() -> None:
    async def go(port: int) -> None:
        async with served("127.0.0.1", port, tuple):
            pass

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MasterError, match=f"cannot tell metrics.*127.0.0.1:{port}.*choose another --metrics-port"):
            asyncio.run(go(port))


def test_address_of_another_machine_is_refused_without_blaming_the_port() -> None:
    async def go() -> None:
        async with served("192.0.2.1", 0, tuple):
            pass

    with pytest.raises(MasterError, match=r"cannot tell metrics.*192\.0\.2\.1:0; check --metrics-host and port"):
        asyncio.run(go())


def test_other_paths_are_not_found_and_say_where_metrics_are() -> None:
    async def go() -> str:
        async with served("127.0.0.1", 0, tuple) as address:
            return await asyncio.to_thread(get, f"http://{address}/foo")

    with pytest.raises(urllib.error.HTTPError) as refused:
        asyncio.run(go())
    with refused.value as answer:
        assert (answer.code, answer.read()) == (404, b"metrics are at /metrics\n")


def test_address_of_version_6_is_one_that_a_browser_takes() -> None:
    async def go() -> str:
        async with served("::1", 0, lambda: [JOB]) as address:
            assert address.startswith("[::1]:")
            return await asyncio.to_thread(get, f"http://{address}/metrics")

    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    assert "ako_gradients_total" in asyncio.run(go())


def test_server_without_descriptors_does_not_spin_and_answers_once_there_are_some() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def go() -> str:
        async with served("127.0.0.1", 0, lambda: [JOB]) as address:
            host, port = address.split(":")
            with socket.socket() as client:
                spare = os.dup(client.fileno())  # the lowest that is free, which the limit is about
                os.close(spare)
                resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
                try:
                    client.connect((host, int(port)))
                    taken_s = time.process_time()
                    await asyncio.sleep(1.5)
                    taken_s = time.process_time() - taken_s
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert taken_s < 0.05  # a thousandth as it is; 0.2 and more where it asks again at once
            return await asyncio.to_thread(get, f"http://{address}/metrics")

    assert "ako_gradients_total" in asyncio.run(go())


def test_connection_that_asks_for_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_REQUEST_S", 0.2)

    def wait(address: str) -> bytes:
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=30) as idle:
            idle.sendall(b"GET /metrics HTTP/1.1")
            return idle.recv(1)

    async def go() -> bytes:
        async with served("127.0.0.1", 0, tuple) as address:
            return await asyncio.to_thread(wait, address)

    assert asyncio.run(go()) == b""


def test_port_is_free_again_afterwards() -> None:
    async def go() -> None:
        async with served("127.0.0.1", 0, tuple) as address:
            port = int(address.rpartition(":")[2])
        async with served("127.0.0.1", port, tuple):
            pass

    asyncio.run(go())
