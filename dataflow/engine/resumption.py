"""What a job takes from a checkpoint: whether it can, what of it each of its nodes goes on with, and that it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from pydantic import BaseModel, ConfigDict

from dataflow.engine.blame import named, raised_at, reraise
from dataflow.engine.checkpoints import KeptFile, Manifest, by_element, tensor_types
from dataflow.engine.loading import LoadedNode, load_node, resolve
from dataflow.errors import CheckpointError
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.specs import ElementSpec
from dataflow.plan.compile import compile_graph
from dataflow.plan.job import TensorType
from dataflow.plan.physical import NodePlan, PhysicalPlan
from dataflow.state import Kept, StateElement, StateKind

EVERY_KIND = frozenset(StateKind)

_MOST_NAMED = 5


class Resumption(BaseModel):
    """How a node goes on from a checkpoint.

    Args:
        files: those that it needs, in the order in which it is given their contents.
        own: whether the first is the node's own; else each element is taken from whichever node's will do.
        divided: whether no node goes on with its own: what all had is divided among those that there are.
        whole: whether the checkpoint has a file of every node that the job had.
        kinds: of the state elements that go on; the others begin anew.
        steps: by node that is there, the steps that it counts as having made.
        positions: by chain of the node, the number of the step that it goes on with.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    files: tuple[KeptFile, ...]
    own: bool
    divided: bool
    whole: bool
    kinds: frozenset[StateKind]
    steps: dict[int, int]
    positions: dict[str, int]


def check_fits(manifest: Manifest, plan: PhysicalPlan, tensors: Mapping[str, Mapping[str, TensorType]]) -> None:
    """Nothing, if a job with this plan can go on from a checkpoint.

    Args:
        manifest: of the checkpoint.
        plan: of the job.
        tensors: see `Resume`.

    Raises:
        CheckpointError: its state elements are others, or no node of some role was kept.
    """
    kept = {spec.name: (spec.role, spec.kind, spec.factory, spec.form) for spec in manifest.elements}
    wanted = {spec.name: (spec.role, spec.kind, spec.factory, spec.form) for spec in plan.graph.elements}
    others = [
        f"state element {name!r} is {_words(wanted.get(name))}, and in the checkpoint {_words(kept.get(name))}"
        for name in sorted(kept.keys() | wanted.keys())
        if kept.get(name) != wanted.get(name)
    ]
    if others:
        what = "; ".join(others[:_MOST_NAMED]) + ("; and others" if len(others) > _MOST_NAMED else "")
        raise CheckpointError(what, fix="resume with the settings that the job had; name those with a new default")
    if manifest.seed != plan.seed:
        what = f"the seed is {plan.seed}, and in the checkpoint {manifest.seed}: data would be read in another order"
        raise CheckpointError(what, fix="leave the seed out")
    members = plan.members()
    for spec in plan.graph.elements:
        if spec.kind is StateKind.SUMMED and _is_divided(manifest, plan):
            what = f"state element {spec.name!r} is the sum of what {_kept(manifest, spec.role)} nodes hold"
            alive = len(set(members[spec.role]) - set(plan.vacant))
            raise CheckpointError(what, got=alive, fix="resume with as many nodes as the job had")
    lacking = {role for node in plan.nodes for role in node.roles} - {
        role for file in manifest.files for role in file.member.roles
    }
    if lacking:
        raise CheckpointError(what=f"the checkpoint has no node of role {min(lacking)!r}")
    for role, wanted_of_role in tensors.items():
        file = next(file for file in manifest.files if role in file.member.roles)
        for name, tensor in wanted_of_role.items():
            if not _alike(tensor, file.tensors.get(name)):
                found = file.tensors.get(name)
                there = f"{found.dtype} {list(found.shape)}" if found else "not there"
                what = f"state {name} is {tensor.dtype} {list(tensor.shape)}, and in the checkpoint {there}"
                raise CheckpointError(what, fix="leave out the settings that change what is trained")


def resumption(
    manifest: Manifest, plan: PhysicalPlan, node: int, *, kinds: frozenset[StateKind] = EVERY_KIND
) -> Resumption:
    """How node number `node` of a plan goes on from a checkpoint that fits it.

    Where every role has as many places as before, and somebody is at each that was kept, a node goes on with its own.
    Else, and where it was not alive then, it takes what is anybody's from the first node of its role. Where nobody goes
    on with its own the role goes on where it was in its data: as many steps as its nodes had made together, divided
    among those that it has now. Where its role keeps a ledger it is given all nodes' files.
    """
    steps = {each.index: _steps(manifest, plan, each) for each in plan.nodes if each.index not in plan.vacant}
    found = _own(manifest, plan, plan.nodes[node])
    files, positions = ((found,), found.member.positions) if found else _others(manifest, plan, plan.nodes[node])
    ledgers = {spec.role for spec in plan.graph.elements if spec.kind is StateKind.LEDGER and spec.kind in kinds}
    if not ledgers.isdisjoint(plan.nodes[node].roles):
        files = (*files, *(file for file in manifest.files if file not in files))
    return Resumption(
        files=files,
        own=found is not None,
        divided=_is_divided(manifest, plan),
        whole=all(_kept(manifest, role) == nodes for role, nodes in manifest.roles.items()),
        kinds=kinds,
        steps={index: made for index, made in steps.items() if made is not None},
        positions=positions,
    )


def resume(loaded: LoadedNode, plan: PhysicalPlan, node: int, how: Resumption, files: Sequence[bytes]) -> LoadedNode:
    """A loaded node that goes on from a checkpoint.

    Args:
        loaded: the node as it begins.
        plan: its plan.
        node: its number.
        how: what it takes from the checkpoint.
        files: the contents of `how.files`.

    Raises:
        CheckpointError: a content is not what was written, or a state element does not take its tensors.
        AkoError: a state element raised something else.
    """
    for file, data in zip(how.files, files, strict=True):
        file.check([data])
    tensors = [by_element(data) for data in files]
    kept = [Kept(file.member.node, file.member.steps, each) for file, each in zip(how.files, tensors, strict=True)]
    here = [spec for spec in plan.graph.elements if spec.name in loaded.states and spec.kind in how.kinds]
    name = plan.nodes[node].name
    for spec in here:
        parts = [each[spec.name] for each in (tensors[:1] if how.own else tensors) if spec.name in each]
        with _fitting(spec, name):
            loaded.states[spec.name].resume(_taken(spec, parts, own=how.own), node, how.steps)
    for spec in here:
        if spec.kind is StateKind.LEDGER:
            with _fitting(spec, name):
                loaded.states[spec.name].balance(loaded.states, kept, divided=how.divided, whole=how.whole)
    return replace(loaded, positions=how.positions)


def tensor_types_of(graph: LogicalGraph, nodes: int, seed: int) -> dict[str, dict[str, TensorType]]:
    """What the state of a graph is on the first node of every role, by role and ``element/tensor``; see `Resume`."""
    plan, found = compile_graph(graph, nodes, seed=seed), {}
    for role, members in plan.members().items():
        states = load_node(plan, members[0]).states
        kept = {
            f"{spec.name}/{name}": tensor
            for spec in graph.elements
            if spec.role == role
            for name, tensor in states[spec.name].tensors().items()
        }
        found[role] = tensor_types(kept)
    return found


@contextmanager
def _fitting(spec: ElementSpec, node: str) -> Iterator[None]:
    """Say of what is raised which state element does not fit, or has a mistake, and where."""
    try:
        yield
    except (ValueError, KeyError) as error:
        said = str(error) if isinstance(error, ValueError) else ""
        what = f"state element {spec.name!r} does not fit the checkpoint: {said or named(error)}"
        where = ", ".join(filter(None, (f"node {node}", raised_at(error))))
        raise CheckpointError(what, where=where, fix="resume with the settings that the job had") from error
    except Exception as error:
        reraise(error, f"state element {spec.name!r}", resolve(spec.factory, StateElement), node)


def _taken(spec: ElementSpec, parts: Sequence[dict[str, np.ndarray]], *, own: bool) -> dict[str, np.ndarray]:
    """What an element goes on with, of those of the nodes whose files there are."""
    if not parts or not (own or spec.kind is StateKind.PARTITIONED or resolve(spec.factory, StateElement).anybodys):
        return {}
    if own or spec.kind is not StateKind.PARTITIONED:
        return parts[0]
    return {name: np.sum([part[name] for part in parts], axis=0, dtype=whole.dtype) for name, whole in parts[0].items()}


def _own(manifest: Manifest, plan: PhysicalPlan, node: NodePlan) -> KeptFile | None:
    """The file of the node itself, if there is one and nodes go on with their own."""
    if _is_divided(manifest, plan):
        return None
    found = (file for file in manifest.files if file.member.node == node.index and file.member.roles == node.roles)
    return next(found, None)


def _is_divided(manifest: Manifest, plan: PhysicalPlan) -> bool:
    """Whether there are more or fewer places than before, or nobody is at one whose node was kept."""
    other = any(manifest.roles[role] != len(members) for role, members in plan.members().items())
    return other or any(file.member.node in plan.vacant for file in manifest.files)


def _kept(manifest: Manifest, role: str) -> int:
    """How many nodes of a role were kept."""
    return sum(role in file.member.roles for file in manifest.files)


def _others(manifest: Manifest, plan: PhysicalPlan, node: NodePlan) -> tuple[tuple[KeptFile, ...], dict[str, int]]:
    """Files that a node takes what is anybody's from, and where it goes on."""
    files: dict[str, KeptFile] = {}
    positions: dict[str, int] = {}
    partitioned = {spec.role for spec in plan.graph.elements if spec.kind is StateKind.PARTITIONED}
    for role in node.roles:
        of_role = [file for file in manifest.files if role in file.member.roles]
        files |= {file.file: file for file in (of_role if role in partitioned else of_role[:1])}
        heads = {chain.head for chain in plan.chains if chain.role == role}
        for head in of_role[0].member.positions.keys() & heads:
            positions[head] = _scaled([each.member.positions[head] for each in of_role], role, manifest, plan)
    return tuple(files.values()), positions


def _steps(manifest: Manifest, plan: PhysicalPlan, node: NodePlan) -> int | None:
    """Steps that a node counts as having made; None if it makes none."""
    own = _own(manifest, plan, node)
    if own is not None:
        return own.member.steps
    for role in node.roles:
        made = [file.member.steps for file in manifest.files if role in file.member.roles]
        if made[0] is not None:
            return _scaled([steps or 0 for steps in made], role, manifest, plan)
    return None


def _scaled(made: Sequence[int], role: str, manifest: Manifest, plan: PhysicalPlan) -> int:
    """The steps of each node that there is now, for those of each that was kept; the first's if none goes elsewhere."""
    if not _is_divided(manifest, plan):
        return made[0]
    return round(sum(made) / max(1, len(set(plan.members()[role]) - set(plan.vacant))))


def _alike(wanted: TensorType, found: TensorType | None) -> bool:
    """Tables of integers may have other rows: they grow with what happens."""
    if found is None or found.dtype != wanted.dtype:
        return False
    return found.shape == wanted.shape or not wanted.dtype.startswith("F")


def _words(found: tuple[str, StateKind, str, str] | None) -> str:
    if found is None:
        return "not there"
    role, kind, factory, form = found
    return f"{kind} {factory} of role {role}" + (f", {form}" if form else "")
