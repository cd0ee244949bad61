"""Checkpoints as data: a file per node, a manifest that lists them, and what a node of another job takes from them.

Invariant: what a manifest says of itself and of its files is checked, byte for byte, before anything is used. Files are
safetensors, so reading one runs no code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import safetensors.numpy
from pydantic import BaseModel, ConfigDict, ValidationError

from dataflow.engine.events import Snapshot
from dataflow.engine.loading import LoadedNode, resolve
from dataflow.errors import CheckpointError
from dataflow.graph.logical import ElementSpec
from dataflow.plan.physical import PhysicalPlan
from dataflow.state import StateElement, StateKind

SCHEMA_VERSION = 1
"""Of manifests and of what the files' headers say."""

_MEMBER = "member"
_MAX_HEADER_NBYTES = 100 << 20


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Member(_Data):
    """The node that a file is of.

    Args:
        node: its number.
        name: its name.
        roles: the roles it played.
        steps: steps that its gathering operators had made; None if it has none.
        positions: by chain, the number of the step that it goes on with.
    """

    node: int
    name: str
    roles: tuple[str, ...]
    steps: int | None
    positions: dict[str, int]


class Tensor(_Data):
    """An array in a file: its type as safetensors writes it, such as F32, and its shape."""

    dtype: str
    shape: tuple[int, ...]


class KeptFile(_Data):
    """A file of a checkpoint.

    Args:
        file: its name.
        nbytes: its size.
        sha256: of its content, in hex.
        member: the node.
        tensors: by ``element/tensor``.
    """

    file: str
    nbytes: int
    sha256: str
    member: Member
    tensors: dict[str, Tensor]

    def check(self, data: Iterable[bytes]) -> None:
        """Nothing, if `data`, in pieces, is the file's content.

        Raises:
            CheckpointError: it is not.
        """
        nbytes, digest = 0, hashlib.sha256()
        for piece in data:
            nbytes += len(piece)
            digest.update(piece)
        if nbytes != self.nbytes:
            raise CheckpointError(what=f"a file of {self.nbytes} bytes has {nbytes}", where=self.file)
        if digest.hexdigest() != self.sha256:
            raise CheckpointError(what="a file is not what was written", where=self.file)


class Manifest(_Data):
    """What makes a checkpoint whole; written last.

    Args:
        schema_version: `SCHEMA_VERSION` when it was written.
        version: of the program that wrote it.
        job: id of the job.
        number: of the checkpoint, in steps of the job's schedule.
        plan: digest of the physical plan.
        seed: of the job.
        wall_s: when it was whole, in seconds since 1970-01-01 UTC.
        roles: nodes of every role, those not alive included.
        elements: the graph's state elements.
        files: of every node that was expected to have one, by node number.
    """

    schema_version: int = SCHEMA_VERSION
    version: str
    job: str
    number: int
    plan: str
    seed: int
    wall_s: float
    roles: dict[str, int]
    elements: tuple[ElementSpec, ...]
    files: tuple[KeptFile, ...]

    def encode(self) -> bytes:
        """Its bytes: JSON whose field ``sha256`` is the digest of the rest."""
        body = self.model_dump(mode="json")
        return _canonical(body | {"sha256": hashlib.sha256(_canonical(body)).hexdigest()})

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """A manifest from its bytes.

        Raises:
            CheckpointError: they are not what was written, or of another version of the format.
        """
        try:
            body: dict[str, Any] = json.loads(data)
            digest = body.pop("sha256")
            whole = hashlib.sha256(_canonical(body)).hexdigest() == digest and _canonical(body | {"sha256": digest}) == data
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            whole = False
        if not whole:
            raise CheckpointError(what="the manifest is not what was written")
        if body["schema_version"] != SCHEMA_VERSION:
            what = f"the checkpoint is of version {body['schema_version']}, this program reads {SCHEMA_VERSION}"
            raise CheckpointError(what, fix="resume it with the program that wrote it")
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise CheckpointError(what=f"the manifest is not valid: {error}") from error


class Resumption(_Data):
    """How a node goes on from a checkpoint.

    Args:
        files: names of the files that it needs, in the order in which it is given their contents.
        nbytes: of each of these.
        own: whether the first is of the same node of an equal set of nodes; else each element is taken from whichever
            node's will do.
        kinds: of the state elements that go on; the others begin anew.
        steps: by node of the plan, the steps that it counts as having made.
        positions: by chain of the node, the number of the step that it goes on with.
    """

    files: tuple[str, ...]
    nbytes: tuple[int, ...]
    own: bool
    kinds: frozenset[StateKind] = frozenset(StateKind)
    steps: dict[int, int]
    positions: dict[str, int]


def encode(snapshot: Snapshot, plan: PhysicalPlan) -> bytes:
    """The file of a node's snapshot."""
    node = plan.nodes[snapshot.node]
    member = Member(
        node=node.index,
        name=node.name,
        roles=node.roles,
        steps=snapshot.steps,
        positions=dict(snapshot.positions),
    )
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in snapshot.tensors.items()}
    return safetensors.numpy.save(tensors, {_MEMBER: member.model_dump_json()})


def describe(begin: bytes, file: str, nbytes: int, sha256: str) -> KeptFile:
    """What a manifest says of a file.

    Args:
        begin: the file's beginning, with its header at least; see `header_nbytes`.
        file, nbytes, sha256: see `KeptFile`.

    Raises:
        CheckpointError: it is no file of a checkpoint.
    """
    try:
        header = json.loads(begin[8 : header_nbytes(begin)])
        member = Member.model_validate_json(header.pop("__metadata__")[_MEMBER])
        tensors = {name: Tensor(dtype=each["dtype"], shape=each["shape"]) for name, each in header.items()}
        return KeptFile(file=file, nbytes=nbytes, sha256=sha256, member=member, tensors=tensors)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(what=f"no file of a checkpoint: {error}", where=file) from error


def header_nbytes(begin: bytes) -> int:
    """Size of a file's header, by its first 8 bytes.

    Raises:
        CheckpointError: that is no size of a header.
    """
    size = 8 + int.from_bytes(begin[:8], "little")
    if len(begin) < 8 or size > _MAX_HEADER_NBYTES:
        raise CheckpointError(what="no file of a checkpoint")
    return size


def check_fits(manifest: Manifest, plan: PhysicalPlan) -> None:
    """Nothing, if a job with this plan can go on from a checkpoint.

    Raises:
        CheckpointError: its state elements are others, or no node of some role was kept.
    """
    kept = {spec.name: (spec.role, spec.kind, spec.factory) for spec in manifest.elements}
    wanted = {spec.name: (spec.role, spec.kind, spec.factory) for spec in plan.graph.elements}
    for name in sorted(kept.keys() | wanted.keys()):
        if kept.get(name) != wanted.get(name):
            what = f"state element {name!r} is {_words(wanted.get(name))}, and in the checkpoint {_words(kept.get(name))}"
            raise CheckpointError(what, fix="resume with the settings that the job had")
    if manifest.seed != plan.seed:
        what = f"the seed is {plan.seed}, and in the checkpoint {manifest.seed}: data would be read in another order"
        raise CheckpointError(what, fix="leave the seed out")
    lacking = {role for node in plan.nodes for role in node.roles} - {
        role for file in manifest.files for role in file.member.roles
    }
    if lacking:
        raise CheckpointError(what=f"the checkpoint has no node of role {min(lacking)!r}")


def resumption(
    manifest: Manifest, plan: PhysicalPlan, node: int, *, kinds: frozenset[StateKind] = frozenset(StateKind)
) -> Resumption:
    """How node number `node` of a plan goes on from a checkpoint that fits it.

    On equal nodes everybody goes on with its own. Else a role goes on where it was in its data: as many steps as its
    nodes had made together, divided among those that it has now, by the first node that was kept.
    """
    before = {file.member.node: file.member.roles for file in manifest.files}
    if before == {each.index: each.roles for each in plan.nodes}:
        file = next(file for file in manifest.files if file.member.node == node)
        return Resumption(
            files=(file.file,),
            nbytes=(file.nbytes,),
            own=True,
            kinds=kinds,
            steps={each.member.node: each.member.steps for each in manifest.files if each.member.steps is not None},
            positions=file.member.positions,
        )
    files: dict[str, int] = {}
    positions: dict[str, int] = {}
    partitioned = {spec.role for spec in plan.graph.elements if spec.kind is StateKind.PARTITIONED}
    for role in plan.nodes[node].roles:
        of_role = [file for file in manifest.files if role in file.member.roles]
        files.update({file.file: file.nbytes for file in (of_role if role in partitioned else of_role[:1])})
        heads = {chain.head for chain in plan.chains if chain.role == role}
        member = of_role[0].member
        positions.update(
            {
                head: _scaled(position, role, manifest, plan)
                for head, position in member.positions.items()
                if head in heads
            }
        )
    return Resumption(
        files=tuple(files),
        nbytes=tuple(files.values()),
        own=False,
        kinds=kinds,
        steps=dict(_steps(manifest, plan)),
        positions=positions,
    )


def resume(loaded: LoadedNode, plan: PhysicalPlan, node: int, how: Resumption, files: Sequence[bytes]) -> LoadedNode:
    """A loaded node that goes on from a checkpoint.

    Args:
        loaded: the node as it begins.
        plan: its plan.
        node: its number.
        how: what it takes from the checkpoint.
        files: the contents of `how.files`, which have been checked.

    Raises:
        CheckpointError: a state element does not take its tensors.
    """
    kept = [_by_element(data) for data in files]
    for spec in plan.graph.elements:
        if spec.name not in loaded.states or spec.kind not in how.kinds:
            continue
        parts = [each[spec.name] for each in kept if spec.name in each]
        try:
            loaded.states[spec.name].resume(_taken(spec, parts, own=how.own), node, how.steps)
        except (ValueError, KeyError) as error:
            what = f"state element {spec.name!r} does not fit the checkpoint: {error}"
            fix = "resume with the settings that the job had"
            raise CheckpointError(what, where=f"node {plan.nodes[node].name}", fix=fix) from error
    return replace(loaded, positions=how.positions)


def _taken(spec: ElementSpec, parts: Sequence[dict[str, np.ndarray]], *, own: bool) -> dict[str, np.ndarray]:
    """What an element goes on with, of those of the nodes whose files there are."""
    if not parts or not (own or spec.kind is StateKind.PARTITIONED or resolve(spec.factory, StateElement).anybodys):
        return {}
    if own or spec.kind is not StateKind.PARTITIONED:
        return parts[0]
    return {name: np.sum([part[name] for part in parts], axis=0, dtype=whole.dtype) for name, whole in parts[0].items()}


def _by_element(data: bytes) -> dict[str, dict[str, np.ndarray]]:
    try:
        tensors = safetensors.numpy.load(data)
    except safetensors.SafetensorError as error:
        raise CheckpointError(what=f"no file of a checkpoint: {error}") from error
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, tensor in tensors.items():
        element, _, key = name.partition("/")
        found.setdefault(element, {})[key] = tensor
    return found


def _steps(manifest: Manifest, plan: PhysicalPlan) -> Iterator[tuple[int, int]]:
    for node in plan.nodes:
        for role in node.roles:
            member = next(file.member for file in manifest.files if role in file.member.roles)
            if member.steps is not None:
                yield node.index, _scaled(member.steps, role, manifest, plan)


def _scaled(steps: int, role: str, manifest: Manifest, plan: PhysicalPlan) -> int:
    return round(steps * manifest.roles[role] / sum(role in node.roles for node in plan.nodes))


def _canonical(body: Mapping[str, object]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _words(found: tuple[str, StateKind, str] | None) -> str:
    return "not there" if found is None else f"{found[1]} {found[2]} of role {found[0]}"
