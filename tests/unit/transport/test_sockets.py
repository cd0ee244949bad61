"""What the kernel counts of real connections over loopback, one of which it paces as if its link were slow."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from dataflow.transport import sockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells for how long a connection was busy")

_PACING = 47  # SO_MAX_PACING_RATE, asm-generic/socket.h; the first ten packets, 640 kB here, are not paced
WAIT_S = 0.3


class Pair:
    """A connection: this end, the other end, and its address."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family) as listener:
            port = listener.getsockname()[1]
            self.near = socket.create_connection((host, port))
            self.far, _ = listener.accept()
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        self.near.close()
        self.far.close()

    def send_paced(self, nbytes: int, rate: int) -> None:
        """Send so many bytes with so many bytes a second, and return once they are read."""
        self.near.setsockopt(socket.SOL_SOCKET, _PACING, rate)
        reading = threading.Thread(target=self._read, args=(nbytes,))
        reading.start()
        self.near.sendall(bytes(nbytes))
        reading.join(timeout=60)

    def _read(self, nbytes: int) -> None:
        while nbytes:
            nbytes -= len(self.far.recv(nbytes))


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def busy_s(pair: Pair) -> float:
    return sockets.busy_s([pair.address])[pair.address]


def test_connection_that_is_paced_is_busy_until_all_has_passed(pair: Pair) -> None:
    began_s = time.monotonic()
    pair.send_paced(2_640_000, 5_000_000)
    assert 0.3 <= busy_s(pair) <= time.monotonic() - began_s + 0.05


def test_connection_is_not_busy_because_nobody_reads_what_has_come(pair: Pair) -> None:
    pair.near.sendall(bytes(20_000))
    time.sleep(WAIT_S)
    assert busy_s(pair) < WAIT_S / 2


def test_connection_is_not_busy_because_the_other_end_has_no_room(pair: Pair) -> None:
    pair.near.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            pair.near.send(bytes(1 << 20))
    before_s = busy_s(pair)
    time.sleep(WAIT_S)
    assert busy_s(pair) - before_s < WAIT_S / 2


def test_connection_that_is_over_counts_no_more_and_the_next_one_begins_with_nothing() -> None:
    first = Pair()
    first.send_paced(1_640_000, 5_000_000)
    assert busy_s(first) >= 0.15
    first.close()
    assert sockets.busy_s([first.address]) == {}
    second = Pair(port=int(first.address.rpartition(":")[2]))
    assert busy_s(second) < 0.1
    second.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_addresses_are_those_that_were_dialled(host: str) -> None:
    try:
        made = Pair(host)
    except OSError:
        pytest.skip("this machine has no IPv6")
    try:
        assert sockets.busy_s([made.address]).keys() == {made.address}
        port = made.address.rpartition(":")[2]
        named = f"somewhere.test:{port}"
        assert sockets.busy_s([named]).keys() == {named}
        assert sockets.busy_s([named, f"elsewhere.test:{port}"]) == {}
        assert sockets.busy_s([f"203.0.113.7:{port}", "memory:0"]) == {}
    finally:
        made.close()


def test_scope_and_mapping_of_an_address_make_no_difference(pair: Pair) -> None:
    port = pair.address.rpartition(":")[2]
    mapped = f"[::ffff:127.0.0.1]:{port}"
    assert sockets.busy_s([mapped]).keys() == {mapped}
    assert sockets.busy_s([f"[fe80::1%eth0]:{port}"]) == {}


def test_nothing_is_known_where_descriptors_cannot_be_listed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_DESCRIPTORS", "/nowhere")
    assert sockets.busy_s([pair.address]) == {}


def test_sockets_of_others_stay_as_they_are(pair: Pair) -> None:
    """Python makes sockets non-blocking, for all who have the descriptor, that it is given with a default timeout."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30.0)
    try:
        sockets.busy_s([pair.address])
    finally:
        socket.setdefaulttimeout(before)
    assert os.get_blocking(pair.near.fileno())


def test_descriptors_that_come_and_go_meanwhile_do_no_harm(pair: Pair) -> None:
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            Pair().close()

    churning = [threading.Thread(target=churn) for _ in range(2)]
    for thread in churning:
        thread.start()
    try:
        for _ in range(200):
            assert sockets.busy_s([pair.address]).keys() == {pair.address}
    finally:
        over.set()
        for thread in churning:
            thread.join(timeout=60)
