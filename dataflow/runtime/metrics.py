"""What a master tells Prometheus: the newest measurements of the nodes of its jobs.

Invariant: series are made anew for every scrape from the jobs that there are, so their number is bounded by those.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from dataflow.errors import MasterError
from dataflow.observe.condition import MeasuredJob, poisoned
from dataflow.reports import NodeStatistics, rates_between
from dataflow.transport.addresses import endpoint

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

SAMPLES = (
    "p",
    "every",
    "predicted_nbytes_s",
    "staleness",
    "lag",
    "gap",
    "normalised_gap",
    "compression_ratio",
    "updates_per_message",
    "bits_per_update",
    "tau",
    "residual_norm",
)
"""Samples that are exported, by the end of their names."""

_PATH = "/metrics"
_SCRAPE_S = 5.0
_REQUEST_S: Final = 5.0
"""Seconds within which the master's loop must answer a scrape."""

_EXHAUSTED_S = 0.5
"""Seconds until a connection is accepted after one could not be."""

_Accepted = TypeVar("_Accepted")

_NODE = ("job_id", "job_name", "node")
_PAIR = (*_NODE, "peer")


def families(jobs: Sequence[MeasuredJob]) -> list[Metric]:
    """The metrics of these jobs: seconds, bytes and counts since the start of each, and rates of its newest while."""
    nodes = [(job, (job.id, job.name, job.node_name(node)), told) for job in jobs for node, told in job.told.items()]
    gradients = CounterMetricFamily("ako_gradients", "Gradients finished.", labels=_NODE)
    poison = CounterMetricFamily(
        "ako_poisoned", "Gradients and fragments that were not finite, and counted as zeros.", labels=_NODE
    )
    seconds = {
        name: CounterMetricFamily(f"ako_{name}_seconds", text, labels=_NODE)
        for name, text in (
            ("running", "Seconds since the node began to run."),
            ("computing", "Seconds of tasks of the compute pool, summed over its threads."),
            ("blocked", "Seconds in which staleness, or another gate, held the next step back."),
            ("cpu", "Processor seconds of the job process."),
            ("exchange_cpu", "Processor seconds of what exists only because nodes exchange messages."),
        )
    }
    idle = GaugeMetricFamily("ako_idle_seconds", "Seconds that were neither computing nor blocked.", labels=_NODE)
    tasks = GaugeMetricFamily("ako_compute_tasks", "Threads of the compute pool.", labels=_NODE)
    incarnation = GaugeMetricFamily(
        "ako_incarnation", "How often the node had been started for the job before.", labels=_NODE
    )
    samples = GaugeMetricFamily("ako_sample", "Newest sample of an operator.", labels=(*_NODE, "operator", "sample"))
    for _job, labels, told in nodes:
        newest = told[-1]
        gradients.add_metric(labels, newest.steps)
        poison.add_metric(labels, poisoned([newest]))
        seconds["running"].add_metric(labels, newest.running_s)
        seconds["computing"].add_metric(labels, newest.computing_s)
        seconds["blocked"].add_metric(labels, newest.waiting_s)
        if newest.processor is not None:
            seconds["cpu"].add_metric(labels, newest.processor.process)
            seconds["exchange_cpu"].add_metric(labels, newest.processor.exchange)
        idle.add_metric(labels, newest.idle_s)
        tasks.add_metric(labels, newest.compute_tasks)
        incarnation.add_metric(labels, newest.incarnation)
        for name, sample in newest.samples.items():
            operator, _, kind = name.rpartition(".")
            if kind in SAMPLES:
                samples.add_metric((*labels, operator, kind), sample.last)
    return [gradients, poison, *seconds.values(), idle, tasks, incarnation, samples, *_pairs(nodes)]


def _pairs(nodes: Sequence[tuple[MeasuredJob, tuple[str, str, str], Sequence[NodeStatistics]]]) -> list[Metric]:
    """The metrics of every pair of nodes between which messages pass."""
    sent = CounterMetricFamily("ako_sent_bytes", "Bytes of messages sent to the peer.", labels=_PAIR)
    received = CounterMetricFamily("ako_received_bytes", "Bytes of messages received from the peer.", labels=_PAIR)
    delivered = CounterMetricFamily("ako_delivered_bytes", "Bytes that the peer has acknowledged.", labels=_PAIR)
    busy = CounterMetricFamily(
        "ako_link_busy_seconds", "Seconds in which bytes were on their way to the peer.", labels=_PAIR
    )
    delay = SummaryMetricFamily(
        "ako_delay_seconds", "From handing a message to the link until the peer acknowledged it.", labels=_PAIR
    )
    goodput = GaugeMetricFamily(
        "ako_goodput_bytes_per_second",
        "Bytes acknowledged per second in which the link was busy, lately.",
        labels=_PAIR,
    )
    for job, labels, told in nodes:
        newest = told[-1]
        before = told[-2] if len(told) > 1 else NodeStatistics(newest.node)
        for peer, nbytes in newest.sent_nbytes.items():
            sent.add_metric((*labels, job.node_name(peer)), nbytes)
        for peer, nbytes in newest.received_nbytes.items():
            received.add_metric((*labels, job.node_name(peer)), nbytes)
        lately = rates_between(before, newest).links
        for peer, link in newest.links.items():
            pair = (*labels, job.node_name(peer))
            delivered.add_metric(pair, link.nbytes)
            busy.add_metric(pair, link.busy_s)
            delay.add_metric(pair, link.messages, link.delay_s)
            if lately[peer].busy_s:
                goodput.add_metric(pair, lately[peer].nbytes / lately[peer].busy_s)
    return [sent, received, delivered, busy, delay, goodput]


class _Jobs(Collector):
    """Asks for the jobs on the master's event loop; scrapes come on threads of their own."""

    def __init__(self, jobs: Callable[[], Sequence[MeasuredJob]]) -> None:
        self._jobs, self._loop = jobs, asyncio.get_running_loop()

    def collect(self) -> Iterator[Metric]:
        yield from families(asyncio.run_coroutine_threadsafe(self._ask(), self._loop).result(_SCRAPE_S))

    async def _ask(self) -> Sequence[MeasuredJob]:
        return self._jobs()


def _only(path: str, app: WSGIApplication) -> WSGIApplication:
    """An application that answers at a path; elsewhere there is nothing, and it says where to look."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == path:
            return app(environ, start_response)
        start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"metrics are at {path}\n".encode()]

    return answer


def _patient(accept: Callable[[], _Accepted]) -> Callable[[], _Accepted]:
    """What accepts a connection, and waits a little where there is no descriptor for one: it would be asked at once."""

    def accept_or_wait() -> _Accepted:
        try:
            return accept()
        except OSError:
            threading.Event().wait(_EXHAUSTED_S)
            raise

    return accept_or_wait


@asynccontextmanager
async def served(host: str, port: int, jobs: Callable[[], Sequence[MeasuredJob]]) -> AsyncIterator[str]:
    """Answer scrapes over HTTP while inside the ``async with`` block, which is given the ``host:port``.

    Args:
        host: address to listen on.
        port: port to listen on; 0 for any free one.
        jobs: those that have told anything; called on the event loop.

    Raises:
        MasterError: the port is in use, or the address is not this machine's.
    """
    registry = CollectorRegistry()
    registry.register(_Jobs(jobs))
    try:
        server, thread = await asyncio.to_thread(start_http_server, port, host, registry)
    except OSError as error:
        what = f"cannot tell metrics on this address: {error.strerror or error}"
        taken = error.errno == errno.EADDRINUSE
        fix = "stop the other program, or choose another --metrics-port" if taken else "check --metrics-host and port"
        raise MasterError(what, where=endpoint(host, port), fix=fix) from error
    handler: Any = server.RequestHandlerClass
    server.RequestHandlerClass = type("Hasty", (handler,), {"timeout": _REQUEST_S})
    server.get_request = _patient(server.get_request)  # type: ignore[method-assign]
    server.set_app(_only(_PATH, make_wsgi_app(registry)))
    try:
        yield endpoint(host, server.server_port)
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()
