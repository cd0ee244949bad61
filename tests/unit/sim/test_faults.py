"""Declared faults: how they are written, and what is said about those that cannot be."""

from __future__ import annotations

import pytest

from dataflow.errors import ConfigError
from dataflow.sim.faults import (
    Fault,
    LinkChanges,
    LinkFails,
    NodeFails,
    NodeJoins,
    NodeLeaves,
    NodePauses,
    NodeSlows,
    check_faults,
    parse_fault,
)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("fail:2@10", NodeFails(node=2, at_s=10)),
        ("fail:0@0", NodeFails(node=0, at_s=0)),
        ("fail:2@10+5", NodeFails(node=2, at_s=10, for_s=5)),
        ("pause:12@0.25+1.5", NodePauses(node=12, at_s=0.25, for_s=1.5)),
        ("slow:2@10+5x4", NodeSlows(node=2, at_s=10, for_s=5, factor=4)),
        ("slow:2@10+5x0.5", NodeSlows(node=2, at_s=10, for_s=5, factor=0.5)),
        ("cut:0-2@10+3", LinkFails(node=0, other=2, at_s=10, for_s=3)),
        ("cut:0-2@10", LinkFails(node=0, other=2, at_s=10)),
        ("rate:2@10=10mbit", LinkChanges(node=2, at_s=10, rate=1.25e6)),
        ("rate:0@0.5=1gbit", LinkChanges(node=0, at_s=0.5, rate=125e6)),
        ("leave:2@10", NodeLeaves(node=2, at_s=10)),
        ("join@0.5", NodeJoins(at_s=0.5)),
        ("fail:2@1000000000", NodeFails(node=2, at_s=1e9)),
    ],
)
def test_parse_fault_reads_the_short_form(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no such fault"),
        ("explode:2@10", "there is no such fault (got explode:2@10); write one of: fail:2@10, pause:2@10+1.5"),
        ("2@10", "there is no such fault"),
        ("fail:2", "the fault cannot be read (got fail:2); write it like fail:2@10"),
        ("fail:@10", "write it like fail:2@10"),
        ("fail:two@10", "write it like fail:2@10"),
        ("fail:2@", "write it like fail:2@10"),
        ("fail:2@-1", "write it like fail:2@10"),
        ("fail:-2@1", "write it like fail:2@10"),
        ("fail:2@10+", "write it like fail:2@10"),
        ("fail:2@10+0", "for_s: must be greater than 0"),
        ("fail:2@nan", "write it like fail:2@10"),
        ("fail:2@1.2.3", "at_s: must be a valid number"),
        ("fail:2@1000000001", "at_s: must be less than or equal to 1000000000"),
        ("fail:2@" + "9" * 400, "at_s: must be a finite number"),
        ("pause:2@10", "write it like pause:2@10+1.5"),
        ("pause:2@10+0", "for_s: must be greater than 0"),
        ("pause:2@10+-1", "write it like pause:2@10+1.5"),
        ("slow:2@10+5", "write it like slow:2@10+5x4"),
        ("slow:2@10+5x0", "factor: must be greater than or equal to 0.000001"),
        ("slow:2@10+5x99999999", "factor: must be less than or equal to 1000000"),
        ("cut:0@10+3", "write it like cut:0-2@10+3"),
        ("cut:0-2@10+0", "for_s: must be greater than 0"),
        ("leave:2@10+5", "write it like leave:2@10"),
        ("join:4@10", "write it like join@10"),
        ("fail2@10", "write it like fail:2@10"),
        ("rate:2@10", "the fault cannot be read (got rate:2@10); write it like rate:2@10=10mbit"),
        ("rate:2@10=", "write it like rate:2@10=10mbit"),
        ("rate:2@10+5=10mbit", "write it like rate:2@10=10mbit"),
        ("rate:2@10=fast", "not a bandwidth (got fast); write it like 100mbit or 1gbit"),
        ("rate:2@10=0mbit", "not a bandwidth (got 0mbit); write it like 100mbit or 1gbit"),
    ],
)
def test_parse_fault_of_anything_else_says_how_to_write_it(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_fault(text)
    assert said in str(raised.value)
    assert "write " in str(raised.value)


@pytest.mark.parametrize(
    "text", ["fail:4@1", "pause:99999999999999999999@1+1", "slow:4@1+1x2", "cut:0-4@1+1", "rate:4@1=1mbit", "leave:4@1"]
)
def test_check_faults_of_a_node_that_does_not_exist_names_those_that_do(text: str) -> None:
    with pytest.raises(ConfigError, match=r"a node that does not exist.*nodes: 0 to 3"):
        check_faults([parse_fault(text)], 4)


def test_check_faults_of_a_link_to_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match="cuts a node off itself"):
        check_faults([parse_fault("cut:2-2@1+1")], 4)


def test_check_faults_of_existing_nodes_is_silent() -> None:
    check_faults([parse_fault("fail:3@1"), parse_fault("cut:0-3@1+1")], 4)


def test_node_that_has_failed_may_fail_again_once_it_is_back() -> None:
    again = [parse_fault("fail:2@3+1"), parse_fault("fail:2@1+2"), parse_fault("fail:1@1.5")]
    check_faults(again, 4, 0.5)
    for texts in (["fail:2@1", "fail:2@1+1"], ["fail:2@1+5", "fail:2@3+0.5"], ["fail:2@1+0.1", "fail:2@1.3+3"]):
        with pytest.raises(
            ConfigError, match=r"node 2 cannot fail at second .*: it has failed before, and is not back"
        ):
            check_faults([parse_fault(text) for text in texts], 4, 0.5)
