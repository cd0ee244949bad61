"""Every network passes the public suite, and links pass it on networks that lose connections."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dataflow.clock import SystemClock
from dataflow.runtime.certificates import job_pair
from dataflow.testing.conformance import (
    LINK_CHECKS,
    NETWORK_CHECKS,
    PROTOCOL_CHECKS,
    Check,
    Subject,
    run_check,
)
from dataflow.transport.base import Network
from dataflow.transport.faulty import CutAfter, Delay, Fault, FaultyNetwork, Refuse
from dataflow.transport.grpc_connection import GrpcNetwork
from dataflow.transport.memory import MemoryNetwork

PAIR = job_pair(SystemClock().wall())
INNER: dict[str, Callable[[], Network]] = {"memory": MemoryNetwork, "grpc": lambda: GrpcNetwork(token="secret")}
ENCRYPTED = {"tls": lambda: GrpcNetwork(token="secret", pair=PAIR)}
FAULTS: dict[str, tuple[Fault, ...]] = {
    "cut": tuple(CutAfter(frames) for frames in (3, 1, 5, 2, 4, 9, 3, 8, 30, 6)),
    "slow": (Delay(0.0, 0.002),),
    "refused": (Refuse(times=7), CutAfter(frames=4, times=3), Delay(0.0, 0.0005)),
}


@pytest.mark.parametrize("check", NETWORK_CHECKS + PROTOCOL_CHECKS + LINK_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("inner", [*INNER, *ENCRYPTED])
def test_network_conforms(inner: str, check: Check) -> None:
    run_check(check, lambda: Subject.of({**INNER, **ENCRYPTED}[inner]()))


@pytest.mark.parametrize("check", LINK_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize("inner", INNER)
def test_links_conform_on_a_faulty_network(inner: str, faults: str, check: Check) -> None:
    run_check(check, lambda: Subject.of(FaultyNetwork(INNER[inner](), FAULTS[faults], np.random.default_rng(1))))
