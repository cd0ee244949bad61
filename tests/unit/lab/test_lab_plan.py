"""The plan of a lab: names, addresses and commands, worked out by hand."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.errors import ConfigError
from dataflow.lab.plan import (
    MOST_HOSTS,
    RATES,
    Command,
    Host,
    LabPlan,
    cut_command,
    enter_command,
    is_cut,
    lab_name,
    leftovers,
    loss_commands,
    make_commands,
    mend_command,
    probe_commands,
    rate_commands,
    relay_arguments,
    relay_commands,
)

NAME = "ako-lab-0a1b"
FAST, SLOW = Host(rate=12.5e6), Host(rate=125_000, cores=0.25)
PLAN = LabPlan(name=NAME, hosts=(FAST, SLOW))

hosts = st.builds(Host, rate=st.floats(1e3, 1e11), cores=st.none() | st.floats(0.05, 64))
plans = st.builds(
    LabPlan,
    name=st.just(NAME),
    hosts=st.lists(hosts, min_size=1, max_size=6).map(tuple),
    latency_s=st.sampled_from([0.0, 0.001]),
    relayed=st.booleans(),
)


def namespace_of(command: Command) -> str:
    """The namespace that a command works in or makes."""
    if command[1] == "netns":
        return command[3]
    assert command[1] == "-n"
    return command[2]


@given(st.integers(1, MOST_HOSTS))
def test_stations_of_any_lab_have_addresses_of_their_own_in_one_network(count: int) -> None:
    stations = LabPlan(name=NAME, hosts=(FAST,) * count).stations
    assert [station.name for station in stations] == [*map(str, range(count)), "switch"]
    assert len({station.address for station in stations}) == len({station.mac for station in stations}) == count + 1
    assert all(ip_address(station.address) in ip_network("198.18.0.0/16") for station in stations)
    # Unicast and locally administered, and not the address that nobody has.
    assert all(station.mac.startswith("02:00:c6:12:") for station in stations)


def test_station_of_a_host_and_of_the_switch() -> None:
    assert PLAN.host(1) == PLAN.station("1")
    assert (PLAN.host(1).namespace, PLAN.host(1).address, PLAN.host(1).mac) == (
        f"{NAME}-1",
        "198.18.0.2",
        "02:00:c6:12:00:02",
    )
    assert (PLAN.switch.namespace, PLAN.switch.address) == (f"{NAME}-switch", "198.18.255.254")


@pytest.mark.parametrize("name", ["2", "-1", "one", "", "1" * 5000])
def test_station_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"no such host|not a host"):
        PLAN.station(name)


@given(plans)
def test_make_commands_touch_the_namespaces_of_the_lab_only_and_make_each_first(plan: LabPlan) -> None:
    made: list[str] = []
    for command in make_commands(plan):
        if command[1:3] == ("netns", "add"):
            made.append(command[3])
        assert namespace_of(command) in made
    assert (
        made == leftovers(NAME, made) == [f"{NAME}-switch", *(f"{NAME}-{number}" for number in range(len(plan.hosts)))]
    )


def test_make_commands_shape_both_ends_of_every_host() -> None:
    commands = make_commands(PLAN)
    for number, host in enumerate(PLAN.hosts):
        assert set(rate_commands(PLAN, number, host.rate)) <= set(commands)
    assert sum(command[0] == "tc" for command in commands) == 4


def test_rate_commands_hold_a_millisecond_of_burst_and_a_queue() -> None:
    at_host, at_port = rate_commands(PLAN, 1, 12.5e6)
    bucket = ("root", "handle", "1:", "tbf", "rate", "12500000bps", "burst", "12500", "limit")
    # 4 MiB where the host's own sockets wait; 50 ms of 12.5 MB/s at the switch.
    assert at_host == ("tc", "-n", f"{NAME}-1", "qdisc", "replace", "dev", "eth0", *bucket, "4194304")
    assert at_port == ("tc", "-n", f"{NAME}-switch", "qdisc", "replace", "dev", "port1", *bucket, "625000")


def test_rate_commands_of_the_fastest_link_have_as_long_a_queue_as_tc_takes() -> None:
    assert [command[-1] for command in rate_commands(PLAN, 1, RATES[1])] == ["4294967295"] * 2


def test_rate_commands_of_a_slow_link_have_room_for_packets() -> None:
    _, at_port = rate_commands(PLAN, 0, 125_000)
    assert at_port[-5:] == ("125000bps", "burst", "6056", "limit", "131072")


@pytest.mark.parametrize(
    ("before", "after"),
    [(6055, 6056), (12_500, 9 * 1514), (125_000, 46 * 1514)],
    ids=["as small as any", "of 100 Mbit/s", "of 1 Gbit/s, more than the kernel sends as one"],
)
def test_rate_commands_leave_room_for_the_packets_that_wait(before: int, after: int) -> None:
    for command in rate_commands(PLAN, 0, 125_000, before):
        assert command[command.index("burst") + 1] == str(after)


def test_rate_commands_of_a_faster_link_have_its_burst() -> None:
    _, at_port = rate_commands(PLAN, 0, 125e6, 6055)
    assert at_port[-3] == "125000"


def test_make_commands_with_latency_delay_what_a_host_sends() -> None:
    plan = LabPlan(name=NAME, hosts=(FAST, FAST), latency_s=0.0002)
    delays = [command for command in make_commands(plan) if "netem" in command]
    assert [command[2] for command in delays] == [f"{NAME}-0", f"{NAME}-1"]
    assert all("200us" in command and command[7:9] == ("parent", "1:1") for command in delays)
    assert list(probe_commands(plan)) == ["network namespaces", "tbf", "netem"]
    assert list(probe_commands(PLAN)) == ["network namespaces", "tbf"]


def test_make_commands_with_relays_leave_a_gap_for_each_between_host_and_port() -> None:
    plan = LabPlan(name=NAME, hosts=(FAST, SLOW), latency_s=0.002, relayed=True)
    commands = make_commands(plan)
    assert not any("netem" in command for command in commands)
    pairs = [
        (command[command.index("add") + 1], command[command.index("name") + 1])
        for command in commands
        if "veth" in command
    ]
    assert pairs == [("eth0", "near0"), ("port0", "far0"), ("eth0", "near1"), ("port1", "far1")]
    started = relay_commands(plan, ("relay",), [Path("/logs/0"), Path("/logs/1")])
    assert [command[-4:] for command in started] == [
        ("relay", "near0", "far0", "0.002"),
        ("relay", "near1", "far1", "0.002"),
    ]
    assert all(f"{NAME}-switch" in command for command in started)
    assert [command[:2] for command in started] == [("sh", "-c")] * 2
    assert [command[3] for command in started] == ["/logs/0", "/logs/1"]
    assert [command[-3:] for command in started] == [relay_arguments(plan, 0), relay_arguments(plan, 1)]
    assert relay_commands(PLAN, ("relay",), [Path("/logs/0"), Path("/logs/1")]) == []


def test_cut_commands_work_in_both_directions_and_a_mend_takes_one_back() -> None:
    one, other = PLAN.host(0), PLAN.switch
    cuts = [cut_command(one, other), cut_command(other, one)]
    mends = [mend_command(one, other), mend_command(other, one)]
    assert [(command[2], command[5], command[-1]) for command in cuts] == [
        (f"{NAME}-0", "198.18.255.254", "eth0"),
        (f"{NAME}-switch", "198.18.0.1", "br0"),
    ]
    assert [(command[2], command[5], command[-1]) for command in mends] == [
        (command[2], command[5], command[-1]) for command in cuts
    ]
    assert all(is_cut(command[7]) for command in cuts)
    assert not any(is_cut(station.mac) for station in PLAN.stations)


def test_enter_command_without_a_group_is_ip_alone() -> None:
    assert enter_command(PLAN.host(1), ("ls", "a b")) == ("ip", "netns", "exec", f"{NAME}-1", "ls", "a b")


def test_enter_command_with_a_group_joins_it_before_it_becomes_the_command() -> None:
    command = enter_command(PLAN.host(1), ("ls", "a b"), Path("/groups/cgroup.procs"))
    assert command[:4] == ("sh", "-c", 'echo $$ > "$0" && exec "$@"', "/groups/cgroup.procs")
    assert command[4:] == enter_command(PLAN.host(1), ("ls", "a b"))


def passes(share: float, drawn: int) -> bool:
    """Whether a packet gets through, as the kernel runs the filter of a host for a number that is drawn."""
    bytecode = loss_commands(PLAN.host(0), share)[-1][-1]
    _count, *lines = bytecode.split(",")
    program = [tuple(int(word) for word in line.split()) for line in lines]
    assert len(program) == int(_count)
    assert all(0 <= number < 1 << 32 for line in program for number in line)
    at = 0
    while program[at][0] != 6:  # return
        code, then, other, number = program[at]
        assert code in (32, 53)  # load what is drawn; jump if it is as much
        at += 1 if code == 32 else 1 + (then if drawn >= number else other)
    return program[at][3] == 0


@pytest.mark.parametrize(
    ("share", "drawn", "through"),
    [
        (0.25, 0, False),
        (0.25, (1 << 30) - 1, False),
        (0.25, 1 << 30, True),
        (0.25, (1 << 32) - 1, True),
        (1 - 1e-12, 1 << 31, False),
        (1 - 1e-12, (1 << 32) - 1, True),
        (1.0, 0, False),
        (1.0, (1 << 32) - 1, False),
    ],
)
def test_loss_of_a_share_lets_packets_through_that_draw_more_and_of_all_none(
    share: float, drawn: int, through: bool
) -> None:
    assert passes(share, drawn) == through


def test_lab_name_is_the_same_for_a_folder_and_unlike_that_of_another() -> None:
    assert lab_name(Path("/a")) == lab_name(Path("/a"))
    assert lab_name(Path("/a")) != lab_name(Path("/b"))
    assert LabPlan(name=lab_name(Path("/a")), hosts=(FAST,)).name.startswith("ako-lab-")


def test_lab_name_of_a_link_is_that_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    assert lab_name(tmp_path / "link") == lab_name(tmp_path / "link" / ".." / "folder") == lab_name(tmp_path / "folder")


def test_leftovers_are_the_namespaces_of_this_lab_and_no_other() -> None:
    ours = [f"{NAME}-switch", f"{NAME}-0", f"{NAME}-17"]
    others = [NAME, f"{NAME}-", f"{NAME}-x", f"{NAME}-0-0", f"{NAME}0-1", f"my-{NAME}-0", "ako-lab-ffff-0", "web"]
    assert leftovers(NAME, [*others, *ours]) == ours


@given(st.text(max_size=30))
def test_leftovers_without_the_labs_name_are_none(name: str) -> None:
    assert leftovers(NAME, [name]) == []


def test_text_counts_hosts_that_are_alike() -> None:
    assert PLAN.text == "100mbit, 1mbit with 0.25 cores"
    plan = LabPlan(name=NAME, hosts=(FAST, FAST, SLOW), latency_s=0.002)
    assert plan.text == "2 x 100mbit, 1mbit with 0.25 cores; latency 2ms"


def test_with_rate_changes_one_host() -> None:
    assert [host.rate for host in PLAN.with_rate(0, 1e6).hosts] == [1e6, 125_000]
    assert PLAN.with_rate(0, 1e6).hosts[1] == SLOW


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ({"hosts": []}, "hosts"),
        ({"hosts": [{"rate": 12.5e6, "cores": 0}]}, r"hosts\.0\.cores"),
        ({"hosts": [{"rate": 1}]}, r"hosts\.0\.rate"),
        ({"hosts": [{"rate": 12.5e6}], "latency_s": -1}, "latency_s"),
        ({"hosts": [{"rate": 12.5e6}] * (MOST_HOSTS + 1)}, "hosts"),
    ],
)
def test_parse_what_no_lab_has_is_refused_by_its_key(said: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=f"the lab's {key}: "):
        LabPlan.parse({"name": NAME, **said})
