"""The master: one process that queues jobs, places them on attached nodes and keeps what they report.

It never imports user code: bundles pass through it unopened, and graphs are data.
"""

from __future__ import annotations

import argparse
import errno
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from dataflow.clock import Clock, SystemClock
from dataflow.engine.deadlines import Deadlines
from dataflow.errors import AkoError, MasterError
from dataflow.runtime import descriptors, threads
from dataflow.runtime.auth import AUTHORITY_FILE, Role, check_host, make_tokens, permits
from dataflow.runtime.bundle import MAX_NBYTES
from dataflow.runtime.certificates import job_pair, master_pair
from dataflow.runtime.dispatcher import Dispatcher
from dataflow.runtime.foreground import serve_until_signal
from dataflow.runtime.master_service import MasterService
from dataflow.runtime.metrics import served
from dataflow.runtime.process import die_with_parent
from dataflow.runtime.state_dir import DEFAULT_ADDRESS, StateDirLock, default_state_dir, write_endpoint
from dataflow.runtime.store import Store
from dataflow.runtime.version import VERSION
from dataflow.runtime.wire import MESSAGE_NBYTES
from dataflow.transport.addresses import endpoint, is_loopback, unbracketed
from dataflow.transport.authorization import TokenInterceptor
from dataflow.transport.encryption import KeyPair
from dataflow.transport.generated.control_pb2_grpc import add_MasterServicer_to_server
from dataflow.transport.listener import Listener

_STOP_S = 1.0


@dataclass(frozen=True)
class MasterConfig:
    """Settings of a master.

    Args:
        host: address to listen on.
        port: port to listen on; 0 for any free one.
        state_dir: where jobs, the token and artifacts are kept.
        insecure: allow a host that others can reach, without encryption. Certificates in the state directory, which
            ``ako token --tls`` makes, are used all the same.
        encrypt_loopback: have nodes of this machine encrypt what they send each other, too, if there are certificates.
        max_bundle_nbytes: largest code bundle accepted.
        lost_after_s: seconds of silence after which a node counts as lost.
        deadlines: how long jobs are waited for.
        keep_jobs: how many jobs that are over are kept, with what they made; older ones are removed. All if None.
        metrics_host: address at which Prometheus finds metrics.
        metrics_port: port for that, 0 for any free one; None: there are none.
    """

    host: str = "127.0.0.1"
    port: int = int(DEFAULT_ADDRESS.rpartition(":")[2])
    state_dir: Path = field(default_factory=default_state_dir)
    insecure: bool = False
    max_bundle_nbytes: int = MAX_NBYTES
    lost_after_s: float = 2.0
    deadlines: Deadlines = field(default_factory=Deadlines)
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    encrypt_loopback: bool = False
    keep_jobs: int | None = None


Announce = Callable[[dict[str, str]], None]
"""Told, once it serves, ``address`` and ``state_dir`` of a master, and ``metrics``, where it tells them, if it does."""


def _print(facts: dict[str, str]) -> None:
    metrics = f", metrics at http://{facts['metrics']}/metrics" if "metrics" in facts else ""
    print(f"master listens on {facts['address']}, state in {facts['state_dir']}{metrics}", flush=True)


async def serve(config: MasterConfig, clock: Clock | None = None, announce: Announce = _print) -> None:
    """Run a master until this task is cancelled.

    Args:
        config: how it runs.
        clock: the machine's if None.
        announce: told when it serves.

    Raises:
        ConfigError: others could reach the host, and that was not allowed; or the machine gives it too few descriptors
            or threads.
        MasterError: a port or the state directory is in use.
    """
    encrypted = (config.state_dir / AUTHORITY_FILE).exists()
    check_host(config.host, insecure=config.insecure, encrypted=encrypted)
    check_host(config.metrics_host, insecure=config.insecure)
    descriptors.raise_limit()
    descriptors.require(descriptors.OF_A_MASTER, "a master")
    threads.require(threads.OF_A_PROCESS, "a master")
    lock = StateDirLock(config.state_dir)
    try:
        store = Store(config.state_dir, _warn)
        try:
            await _serve(config, store, make_tokens(config.state_dir), clock or SystemClock(), announce)
        finally:
            store.close()
    finally:
        lock.release()


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


async def _serve(
    config: MasterConfig, store: Store, tokens: Mapping[str, Role], clock: Clock, announce: Announce
) -> None:
    pair = master_pair(config.state_dir, clock.wall())

    def encrypt(hosts: Sequence[str]) -> KeyPair | None:
        plain = all(map(is_loopback, hosts)) and not config.encrypt_loopback
        return None if pair is None or plain else job_pair(clock.wall())

    dispatcher = Dispatcher(store, clock, config.deadlines, config.lost_after_s, encrypt, config.keep_jobs)
    service = MasterService(dispatcher, store, VERSION, config.max_bundle_nbytes)
    try:
        _try_port(config.host, config.port)
        listener = Listener(partial(make_server, tokens, service), config.host, config.port, pair)
    except (OSError, RuntimeError) as error:
        what, fix = (
            "cannot listen on this address; another program may have the port",
            "stop it, or choose another --port",
        )
        if isinstance(error, OSError) and error.errno != errno.EADDRINUSE:
            what, fix = f"cannot listen on this address: {error.strerror}", "check --host and --port"
        raise MasterError(what=what, where=endpoint(config.host, config.port), fix=fix) from error
    async with AsyncExitStack() as around:
        facts = {"address": endpoint(config.host, listener.port), "state_dir": str(config.state_dir)}
        if config.metrics_port is not None:
            metrics = served(config.metrics_host, config.metrics_port, dispatcher.measured)
            facts["metrics"] = await around.enter_async_context(metrics)
        dispatcher.recover()
        await listener.start()
        write_endpoint(config.state_dir, facts["address"])
        announce(facts)
        try:
            await dispatcher.sweep()
        finally:
            dispatcher.shut_down()
            await listener.stop(_STOP_S)


def _try_port(host: str, port: int) -> None:
    """Find out whether a port can be had before gRPC does, which would say in its own words that it cannot.

    Raises:
        OSError: it cannot.
    """
    bare = unbracketed(host) or None
    family, *_, address = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
        probe.bind(address)


def make_server(tokens: Mapping[str, Role], service: MasterService) -> grpc.aio.Server:
    """A server of the master's service and gRPC's own for health, which the tokens guard."""
    server = grpc.aio.server(
        interceptors=[TokenInterceptor({token: partial(permits, role) for token, role in tokens.items()})],
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", MESSAGE_NBYTES),
            ("grpc.max_send_message_length", MESSAGE_NBYTES),
        ],
    )
    add_MasterServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    return server


def main() -> int:
    """Run a master from the command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m dataflow.runtime.master", description=__doc__)
    parser.add_argument("--host", default=MasterConfig.host)
    parser.add_argument("--port", type=int, default=MasterConfig.port)
    parser.add_argument("--state-dir", type=Path, default=default_state_dir())
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--encrypt-loopback", action="store_true")
    parser.add_argument("--die-with", type=int, default=0, metavar="PID", help="end when this parent process ends")
    options = parser.parse_args()
    if options.die_with:
        die_with_parent(options.die_with)
    config = MasterConfig(
        options.host,
        options.port,
        options.state_dir,
        options.insecure,
        encrypt_loopback=options.encrypt_loopback,
    )
    try:
        serve_until_signal(serve(config))
    except AkoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
