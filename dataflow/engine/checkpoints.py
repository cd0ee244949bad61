"""Checkpoints as data: a file per node, and a manifest that lists them.

Invariant: what a manifest says of itself and of its files is checked, byte for byte, before anything is used. Files are
safetensors, so reading one runs no code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np
import safetensors.numpy
from pydantic import BaseModel, ConfigDict, ValidationError

from dataflow.engine.events import Snapshot
from dataflow.errors import CheckpointError, UnreadableCheckpointError, in_words
from dataflow.graph.specs import ElementSpec
from dataflow.plan.job import TensorType

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
    tensors: dict[str, TensorType]

    def check(self, data: Iterable[bytes]) -> None:
        """Nothing, if `data`, in pieces, is the file's content.

        Raises:
            CheckpointError: it is not.
        """
        for _ in self.checked(data):
            pass

    def checked(self, data: Iterable[bytes]) -> Iterator[bytes]:
        """The pieces of `data`, of which the last comes only if together they are the file's content.

        Raises:
            CheckpointError: they are not.
        """
        nbytes, digest, last = 0, hashlib.sha256(), b""
        for piece in data:
            nbytes += len(piece)
            digest.update(piece)
            if nbytes < self.nbytes:
                yield piece
            elif piece:
                last = piece
        if nbytes != self.nbytes:
            raise CheckpointError(what=f"a file of {self.nbytes} bytes has {nbytes}", where=self.file)
        if digest.hexdigest() != self.sha256:
            raise CheckpointError(what="a file is not what was written", where=self.file)
        yield last


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
            CheckpointError: they are not what was written.
            UnreadableCheckpointError: they are of another version of the format.
        """
        try:
            body: dict[str, Any] = json.loads(data)
            digest = body.pop("sha256")
            whole = (
                hashlib.sha256(_canonical(body)).hexdigest() == digest and _canonical(body | {"sha256": digest}) == data
            )
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            whole = False
        if not whole:
            raise CheckpointError(what="the manifest is not what was written")
        if body["schema_version"] != SCHEMA_VERSION:
            what = f"the checkpoint is of version {body['schema_version']}, this program reads {SCHEMA_VERSION}"
            raise UnreadableCheckpointError(what, fix="resume it with the program that wrote it")
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise CheckpointError(what=f"the manifest is not valid: {in_words(error)}") from error


def encode(snapshot: Snapshot) -> bytes:
    """The file of a node's snapshot."""
    member = Member(
        node=snapshot.node,
        name=snapshot.name,
        roles=snapshot.roles,
        steps=snapshot.steps,
        positions=dict(snapshot.positions),
    )
    return _save(snapshot.tensors, {_MEMBER: member.model_dump_json()})


def describe(begin: bytes, file: str, nbytes: int, sha256: str) -> KeptFile:
    """What a manifest says of a file.

    Args:
        begin: the file's beginning, with its header at least; see `header_nbytes`.
        file: its name.
        nbytes: its size.
        sha256: of its content, in hex.

    Raises:
        CheckpointError: it is no file of a checkpoint.
    """
    try:
        header = json.loads(begin[8 : header_nbytes(begin)])
        member = Member.model_validate_json(header.pop("__metadata__")[_MEMBER])
        return KeptFile(file=file, nbytes=nbytes, sha256=sha256, member=member, tensors=_types(header))
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


def by_element(data: bytes) -> dict[str, dict[str, np.ndarray]]:
    """The tensors of a file, by state element and name.

    Raises:
        CheckpointError: it is no file of a checkpoint.
    """
    try:
        tensors = safetensors.numpy.load(data)
    except safetensors.SafetensorError as error:
        raise CheckpointError(what=f"no file of a checkpoint: {error}") from error
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, tensor in tensors.items():
        element, _, key = name.partition("/")
        found.setdefault(element, {})[key] = tensor
    return found


def tensor_types(tensors: Mapping[str, np.ndarray]) -> dict[str, TensorType]:
    """What a manifest says of these tensors of a file."""
    data = _save(tensors, None)
    return _types(json.loads(data[8 : header_nbytes(data)]))


def _save(tensors: Mapping[str, np.ndarray], words: dict[str, str] | None) -> bytes:
    return safetensors.numpy.save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, words)


def _types(header: Mapping[str, Any]) -> dict[str, TensorType]:
    return {name: TensorType(dtype=each["dtype"], shape=each["shape"]) for name, each in header.items()}


def _canonical(body: Mapping[str, object]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
