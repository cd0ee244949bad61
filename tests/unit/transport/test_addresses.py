from __future__ import annotations

import pytest

from dataflow.testing.linked_nodes import Node, Subject, closed, run_check
from dataflow.transport.addresses import endpoint, stays_here
from dataflow.transport.memory import MemoryNetwork

HERE = ["127.0.0.1:80", "127.1.2.3:80", "localhost:80", "[::1]:80"]
ELSEWHERE = ["10.0.0.2:80", "0.0.0.0:80", "host.example:80", "[2001:db8::1]:80", "127.0.0.1.example:80", ""]


def test_endpoint_has_addresses_of_version_6_in_brackets() -> None:
    assert [endpoint(host, 80) for host in ("10.0.0.2", "host.example", "::1", "[::1]")] == [
        "10.0.0.2:80",
        "host.example:80",
        "[::1]:80",
        "[::1]:80",
    ]


@pytest.mark.parametrize("address", HERE)
def test_loopback_addresses_stay_here(address: str) -> None:
    assert stays_here(address)


@pytest.mark.parametrize("address", ELSEWHERE)
def test_other_addresses_may_cross_a_network(address: str) -> None:
    assert not stays_here(address)


@pytest.mark.parametrize(("addresses", "here"), [(HERE, True), ([], True), (HERE[:1] + ELSEWHERE[:1], False)])
def test_links_stay_here_if_all_do(addresses: list[str], here: bool) -> None:
    async def check(subject: Subject) -> None:
        node = Node(subject, 0)
        node.links.open(dict(enumerate(addresses, 1)))
        assert node.links.stay_here() is here
        await closed([node])

    run_check(check, lambda: Subject.of(MemoryNetwork()))
