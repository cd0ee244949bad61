"""Topologies are trees: what they connect, and what is refused."""

from __future__ import annotations

import errno
from pathlib import Path

import networkx as nx
import pytest

from dataflow.errors import ConfigError
from operators.topology import Topology, behind, parse_topology, require_tree


@pytest.mark.parametrize(
    ("text", "edges"),
    [
        ("chain", ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5))),
        ("star", ((0, 1), (0, 2), (0, 3), (0, 4), (0, 5))),
        ("twin_masters", ((0, 1), (0, 2), (1, 3), (0, 4), (1, 5))),
        ("tree(2)", ((0, 1), (0, 2), (1, 3), (1, 4), (2, 5))),
        ("tree(1)", ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5))),
    ],
)
def test_topology_of_six_nodes_has_these_edges(text: str, edges: tuple[tuple[int, int], ...]) -> None:
    assert parse_topology(text).of(6) == edges


@pytest.mark.parametrize("text", ["chain", "star", "twin_masters", "tree(2)", "tree(5)"])
@pytest.mark.parametrize("size", [1, 2, 3, 17])
def test_topology_of_any_size_is_a_tree(text: str, size: int) -> None:
    edges = parse_topology(text).of(size)
    require_tree(edges, size)
    assert len(edges) == size - 1


def test_topology_from_a_file_is_read_without_comments(tmp_path: Path) -> None:
    path = tmp_path / "tree.txt"
    path.write_text("# three\n1 0\n\n2 1  # the last\n")
    topology = parse_topology(str(path))
    assert topology.of(3) == ((0, 1), (1, 2))


def test_topology_with_a_loop_is_refused_with_the_cycle() -> None:
    topology = Topology(kind="edges", edges=((0, 1), (1, 2), (2, 3), (3, 1)))
    with pytest.raises(ConfigError, match=r"has a cycle: 3 - 2 - 1 - 3"):
        topology.of(4)


def test_topology_with_an_edge_to_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"has a cycle: 2 - 2"):
        require_tree(((0, 1), (2, 2)), 3)


def test_topology_file_with_a_loop_is_refused_before_the_number_of_nodes_is_known(tmp_path: Path) -> None:
    path = tmp_path / "loop.txt"
    path.write_text("0 1\n1 2\n2 0\n")
    with pytest.raises(ConfigError, match="has a cycle: 2 - 1 - 0 - 2"):
        parse_topology(str(path))


def test_topology_in_two_parts_is_refused_with_what_is_apart() -> None:
    topology = Topology(kind="edges", edges=((0, 1), (2, 3)))
    with pytest.raises(ConfigError, match="no edges lead from node 0 to 2, 3"):
        topology.of(4)


def test_topology_that_names_a_node_too_many_is_refused() -> None:
    with pytest.raises(ConfigError, match="names a node that does not exist"):
        Topology(kind="edges", edges=((0, 1), (1, 4))).of(3)


@pytest.mark.parametrize("text", ["ring", "tree", "tree(0)", "tree(x)"])
def test_topology_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_topology(text)


@pytest.mark.parametrize(
    "text", ["x" * 300, "~nobody-of-this-name/tree.txt"], ids=["a name too long", "the home of nobody"]
)
def test_topology_that_no_file_can_be_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="the topology's file cannot be read"):
        parse_topology(text)


def test_topology_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tree.txt"
    path.write_bytes(b"0 1\n\xff 2\n")
    with pytest.raises(ConfigError, match="the topology's file cannot be read: 'utf-8' codec"):
        parse_topology(str(path))


def test_topology_file_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")  # which nobody refuses root

    path = tmp_path / "tree.txt"
    path.write_text("0 1\n")
    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(ConfigError, match="the topology's file cannot be read: Permission denied"):
        parse_topology(str(path))


def test_topology_file_with_a_number_that_no_node_has_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "tree.txt"
    path.write_text(f"0 1\n1 {'9' * 5000}\n")
    with pytest.raises(ConfigError, match=r"this line of the topology is no edge .*tree.txt:2"):
        parse_topology(str(path))


def test_topology_file_with_a_line_that_is_no_edge_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "tree.txt"
    path.write_text("0 1\n1 - 2\n")
    with pytest.raises(ConfigError, match=r"tree.txt:2"):
        parse_topology(str(path))


def test_behind_a_neighbour_lie_the_nodes_that_it_leads_to() -> None:
    edges = parse_topology("tree(2)").of(7)
    assert dict(behind(edges, 1)) == {0: (0, 2, 5, 6), 3: (3,), 4: (4,)}
    assert dict(behind((), 0)) == {}


def test_behind_all_neighbours_lie_all_others_once() -> None:
    edges = parse_topology("twin_masters").of(9)
    for node in nx.Graph(edges):
        others = sorted(other for nodes in behind(edges, node).values() for other in nodes)
        assert others == [other for other in range(9) if other != node]
