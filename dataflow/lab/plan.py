"""What a lab is made of, as values: stations, addresses, and the commands that make and change them. Runs nothing.

A station is a network namespace: a host, or the switch, which holds the bridge. A host has one interface, whose other
end is a port of the bridge; `tbf` shapes both ends, so a host sends and receives at its rate. Nothing is made outside
of these namespaces: no interface or address of a lab can collide with the machine's own.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dataflow.errors import ConfigError, refusal
from dataflow.quantities import bandwidth_text

Command = tuple[str, ...]
"""A program and its arguments."""

MOST_HOSTS: Final = 250
SWITCH: Final = "switch"
NETEM: Final = "netem"
PREFIX: Final = "ako-lab-"
"""What the name of every lab begins with."""

_DEVICE: Final = "eth0"
_BRIDGE: Final = "br0"
_NET = int(IPv4Address("198.18.0.0"))  # set aside for tests of networks, RFC 2544
_MASK: Final = 16
_NOBODY: Final = "02:00:00:00:00:00"
_RANDOM: Final = 0xFFFFF000 + 56  # from linux/filter.h: SKF_AD_OFF + SKF_AD_RANDOM
_DRAWN: Final = 1 << 32
_TC_ACT_SHOT: Final = 2  # from linux/pkt_cls.h
_BURST_S: Final = 0.001
_PACKET_NBYTES: Final = 1514
_LEAST_BURST_NBYTES: Final = 4 * _PACKET_NBYTES
_MOST_PACKETS_AT_ONCE: Final = 46  # 64 KiB, which the kernel sends as one
_QUEUE_S: Final = 0.05
_PORT_QUEUE_NBYTES: Final = 128 << 10
_HOST_QUEUE_NBYTES: Final = 4 << 20
_DELAYED_PACKETS: Final = 100_000

RATES: Final = (1e3, 1e11)
"""The least and the largest rate of a link, in bytes per second."""

_HOST_DIGITS: Final = 9
_MOST_QUEUED_NBYTES: Final = 2**32 - 1  # what tc takes

CORES: Final = (0.05, 1024.0)
"""The least and the largest share of the CPU, in cores."""

Rate = Annotated[float, Field(ge=RATES[0], le=RATES[1])]
Cores = Annotated[float, Field(ge=CORES[0], le=CORES[1])]


class Host(BaseModel):
    """What a host has.

    Args:
        rate: bytes per second that it can send, and can receive.
        cores: how many cores its processes may use together, such as 0.5; None: all there are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    rate: Rate
    cores: Cores | None = None


@dataclass(frozen=True)
class Station:
    """A network namespace of a lab.

    Args:
        name: the host's number, or ``switch``.
        namespace: its name for ``ip netns``.
        device: its interface.
        address: of that interface.
        mac: likewise.
        cores: how many cores its processes may use together; None: all there are.
    """

    name: str
    namespace: str
    device: str
    address: str
    mac: str
    cores: float | None = None


class LabPlan(BaseModel):
    """A lab.

    Args:
        name: of the lab; see `lab_name`.
        hosts: its hosts, by number.
        latency_s: seconds that a packet takes from a host to any other station.
        relayed: relays delay packets, as the kernel has no netem; see `dataflow.lab.relay`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    name: Annotated[str, Field(pattern=f"^{PREFIX}[0-9a-f]+$")]
    hosts: Annotated[tuple[Host, ...], Field(min_length=1, max_length=MOST_HOSTS)]
    latency_s: Annotated[float, Field(ge=0, le=10)] = 0.0
    relayed: bool = False

    @classmethod
    def parse(cls, said: Mapping[str, Any]) -> Self:
        """The lab that is described.

        Raises:
            ConfigError: a value that no lab has.
        """
        try:
            return cls.model_validate(said)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ConfigError(what=f"the lab's {where}: {refusal(first)}", got=first["input"]) from None

    @property
    def text(self) -> str:
        """What the lab is like, in words, such as ``3 x 100mbit, 10mbit with 0.5 cores``."""
        parts = [(len(list(group)), host) for host, group in groupby(self.hosts)]
        words = [f"{count} x {_words(host)}" if count > 1 else _words(host) for count, host in parts]
        return ", ".join(words) + (f"; latency {self.latency_s * 1e3:g}ms" if self.latency_s else "")

    @property
    def switch(self) -> Station:
        """The station that holds the bridge; nothing shapes its own interface."""
        return _station(self.name, SWITCH, _BRIDGE, (1 << (32 - _MASK)) - 2)

    @property
    def stations(self) -> tuple[Station, ...]:
        """The hosts by number, then the switch."""
        return (*(self._host(number) for number in range(len(self.hosts))), self.switch)

    def host(self, number: int) -> Station:
        """One host.

        Raises:
            ConfigError: the lab has none of this number.
        """
        if not 0 <= number < len(self.hosts):
            raise ConfigError(what="the lab has no such host", got=number, fix=f"hosts: 0 to {len(self.hosts) - 1}")
        return self._host(number)

    def station(self, name: str) -> Station:
        """A host by its number, or the switch.

        Raises:
            ConfigError: the lab has none of this name.
        """
        if name == SWITCH:
            return self.switch
        if not name.isdecimal() or len(name) > _HOST_DIGITS:
            raise ConfigError(what="not a host", got=name, fix=f"write its number, or {SWITCH}")
        return self.host(int(name))

    def with_rate(self, number: int, rate: float) -> Self:
        """This lab with another rate, in bytes per second, of one host."""
        hosts = [host.model_dump() for host in self.hosts]
        hosts[number]["rate"] = rate
        return self.parse({**self.model_dump(), "hosts": hosts})

    def _host(self, number: int) -> Station:
        return _station(self.name, str(number), _DEVICE, number + 1, self.hosts[number].cores)


def lab_name(state_dir: Path) -> str:
    """The name of the lab of a state directory: always the same, and unlike that of any other."""
    return PREFIX + hashlib.sha256(str(state_dir.resolve()).encode()).hexdigest()[:8]


def leftovers(name: str, namespaces: Iterable[str]) -> list[str]:
    """Which of these namespaces are of the lab called `name`."""
    return [each for each in namespaces if re.fullmatch(rf"{re.escape(name)}-({SWITCH}|\d+)", each)]


def probe_commands(plan: LabPlan) -> dict[str, Command]:
    """For each thing that a lab wants of the kernel, by its name: a command that fails where it cannot be had.

    Each runs in a namespace that is gone when it ends.
    """
    inside = ("unshare", "--net")
    add = (*inside, "tc", "qdisc", "add", "dev", "lo", "root")
    bucket = _tbf(plan.hosts[0].rate, _LEAST_BURST_NBYTES, _PORT_QUEUE_NBYTES)
    return {
        "network namespaces": (*inside, "true"),
        "tbf": (*add, *bucket),
        **({NETEM: (*add, *_netem(plan.latency_s))} if plan.latency_s else {}),
    }


def make_commands(plan: LabPlan) -> list[Command]:
    """What makes a lab where nothing of it is, in order."""
    switch = plan.switch
    commands: list[Command] = [
        *_station_commands(switch),
        ("ip", "-n", switch.namespace, "link", "add", _BRIDGE, "address", switch.mac, "type", "bridge"),
        *_address_commands(switch),
    ]
    for number, host in enumerate(plan.hosts):
        station, port = plan.host(number), _port(number)
        on_switch = ("ip", "-n", switch.namespace, "link", "set", port)
        interface = ("link", "add", _DEVICE, "address", station.mac, "type", "veth", "peer", "name")
        peer = _relayed(number)[0] if plan.relayed else port
        # A port learns nothing and floods nothing: a frame for nobody that is plugged in is lost, as a cut needs it.
        commands += [
            *_station_commands(station),
            ("ip", "-n", station.namespace, *interface, peer, "netns", switch.namespace),
            *(_relay_commands(switch, number) if plan.relayed else ()),
            (*on_switch, "master", _BRIDGE),
            (*on_switch, "type", "bridge_slave", "flood", "off", "learning", "off"),
            (*on_switch, "up"),
            ("bridge", "-n", switch.namespace, "fdb", "replace", station.mac, "dev", port, "master", "static"),
            *_address_commands(station),
            *rate_commands(plan, number, host.rate),
        ]
        if plan.latency_s and not plan.relayed:
            delay = ("parent", "1:1", "handle", "10:", *_netem(plan.latency_s))
            commands.append(("tc", "-n", station.namespace, "qdisc", "add", "dev", _DEVICE, *delay))
    return commands


def relay_commands(plan: LabPlan, program: Command, logs: Sequence[Path]) -> list[Command]:
    """What starts the relays of a lab, which run until they are killed.

    Args:
        plan: the lab.
        program: starts `dataflow.lab.relay`.
        logs: where those of each host write what goes wrong.
    """
    if not plan.relayed:
        return []
    apart = ("sh", "-c", 'exec setsid "$@" </dev/null >/dev/null 2>"$0" &')
    return [
        (*apart, str(log), *enter_command(plan.switch, (*program, *relay_arguments(plan, number))))
        for number, log in enumerate(logs)
    ]


def relay_arguments(plan: LabPlan, number: int) -> Command:
    """What the relay of a host is started with, and no other process of the lab."""
    return (*_relayed(number), str(plan.latency_s))


def rate_commands(plan: LabPlan, number: int, rate: float, burst_nbytes: int = 0) -> list[Command]:
    """What gives a host a rate; what waits in its queues stays there.

    Args:
        plan: the lab.
        number: of the host.
        rate: bytes per second.
        burst_nbytes: burst of its buckets until now, if it has any: packets that the kernel sends as one may wait there
            that are as large. A bucket that is smaller would never let them go, nor anything that waits behind them.
    """
    packets = min(_MOST_PACKETS_AT_ONCE, math.ceil(burst_nbytes / _PACKET_NBYTES))
    burst = max(_LEAST_BURST_NBYTES, round(rate * _BURST_S), packets * _PACKET_NBYTES)
    ends = (
        # A host does not lose its own packets: its sockets wait. A port of the switch does.
        (plan.host(number).namespace, _DEVICE, _HOST_QUEUE_NBYTES),
        (plan.switch.namespace, _port(number), _PORT_QUEUE_NBYTES),
    )
    return [
        ("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "handle", "1:", *_tbf(rate, burst, nbytes))
        for namespace, device, nbytes in ends
    ]


def cut_command(near: Station, far: Station) -> Command:
    """What lets nothing more pass from one station to another: what is for that one is sent to nobody."""
    nobody = ("lladdr", _NOBODY, "nud", "permanent")
    return ("ip", "-n", near.namespace, "neigh", "replace", far.address, *nobody, "dev", near.device)


def mend_command(near: Station, far: Station) -> Command:
    """What takes `cut_command` back; fails where nothing is cut."""
    return ("ip", "-n", near.namespace, "neigh", "delete", far.address, "dev", near.device)


def loss_commands(station: Station, share: float) -> list[Command]:
    """What loses a share of the packets that a station sends, and of those that it receives; 0: none is lost any more.

    A filter of the kernel's packet language draws a number of 32 bits for each packet, which `netem` is not needed for.
    """
    device = ("dev", station.device)
    tc = ("tc", "-n", station.namespace)
    if not share:
        return [(*tc, "qdisc", "delete", *device, "clsact")]
    shot = f"6 0 0 {_TC_ACT_SHOT}"
    # What is drawn is below 2^32, which no constant of the language can be.
    drawn = f"4,32 0 0 {_RANDOM},53 1 0 {min(round(share * _DRAWN), _DRAWN - 1)},{shot},6 0 0 0"
    bytecode = drawn if share < 1 else f"1,{shot}"
    rule = ("pref", "1", "handle", "1", "protocol", "all", "bpf", "direct-action", "bytecode", bytecode)
    return [
        (*tc, "qdisc", "replace", *device, "clsact"),
        *((*tc, "filter", "replace", *device, way, *rule) for way in ("egress", "ingress")),
    ]


def is_cut(lladdr: str) -> bool:
    """Whether a neighbour of this MAC address is one that was cut off."""
    return lladdr == _NOBODY


def enter_command(station: Station, command: Sequence[str], group: Path | None = None) -> Command:
    """What runs a command in a station; it keeps its process id.

    Args:
        station: where.
        command: the program and its arguments.
        group: file that takes the process ids of the station's control group, if it has one.
    """
    inside = ("ip", "netns", "exec", station.namespace, *command)
    return inside if group is None else ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group), *inside)


def _words(host: Host) -> str:
    return bandwidth_text(host.rate) + (f" with {host.cores:g} cores" if host.cores is not None else "")


def _station(lab: str, name: str, device: str, number: int, cores: float | None = None) -> Station:
    address = IPv4Address(_NET + number)
    mac = ":".join(f"{byte:02x}" for byte in (2, 0, *address.packed))
    return Station(name, f"{lab}-{name}", device, str(address), mac, cores)


def _port(number: int) -> str:
    return f"port{number}"


def _relayed(number: int) -> tuple[str, str]:
    """The interfaces that a host's relay is between: towards the host, and towards the bridge."""
    return f"near{number}", f"far{number}"


def _relay_commands(switch: Station, number: int) -> list[Command]:
    """Between a host's interface and its port of the bridge, two more, which nothing but a relay joins."""
    near, far = _relayed(number)
    inside = ("ip", "-n", switch.namespace, "link")
    return [
        (*inside, "add", _port(number), "type", "veth", "peer", "name", far),
        (*inside, "set", near, "up"),
        (*inside, "set", far, "up"),
    ]


def _station_commands(station: Station) -> list[Command]:
    return [
        ("ip", "netns", "add", station.namespace),
        ("ip", "-n", station.namespace, "link", "set", "lo", "up"),
    ]


def _address_commands(station: Station) -> list[Command]:
    inside = ("ip", "-n", station.namespace)
    return [
        (*inside, "address", "add", f"{station.address}/{_MASK}", "dev", station.device),
        (*inside, "link", "set", station.device, "up"),
    ]


def _tbf(rate: float, burst: int, queue_nbytes: int) -> Command:
    """A token bucket. ``bps`` is bytes per second for ``tc``; the queue has room for `_QUEUE_S` of traffic at least."""
    limit = min(_MOST_QUEUED_NBYTES, max(queue_nbytes, round(rate * _QUEUE_S)))
    return ("tbf", "rate", f"{round(rate)}bps", "burst", str(burst), "limit", str(limit))


def _netem(latency_s: float) -> Command:
    return (NETEM, "delay", f"{round(latency_s * 1e6)}us", "limit", str(_DELAYED_PACKETS))
