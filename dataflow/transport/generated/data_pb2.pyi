from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    KIND_MESSAGE: _ClassVar[Kind]
    KIND_END: _ClassVar[Kind]
    KIND_HELLO: _ClassVar[Kind]
    KIND_WELCOME: _ClassVar[Kind]
    KIND_REFUSED: _ClassVar[Kind]
    KIND_ACK: _ClassVar[Kind]
KIND_UNSPECIFIED: Kind
KIND_MESSAGE: Kind
KIND_END: Kind
KIND_HELLO: Kind
KIND_WELCOME: Kind
KIND_REFUSED: Kind
KIND_ACK: Kind

class Packet(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: bytes
    def __init__(self, frames: _Optional[bytes] = ...) -> None: ...

class FrameHeader(_message.Message):
    __slots__ = ("sequence", "edge", "kind", "more", "scalars", "arrays")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    edge: int
    kind: Kind
    more: bool
    scalars: bytes
    arrays: _containers.RepeatedCompositeFieldContainer[ArrayHeader]
    def __init__(self, sequence: _Optional[int] = ..., edge: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., more: _Optional[bool] = ..., scalars: _Optional[bytes] = ..., arrays: _Optional[_Iterable[_Union[ArrayHeader, _Mapping]]] = ...) -> None: ...

class ArrayHeader(_message.Message):
    __slots__ = ("field", "dtype", "shape")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    field: int
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, field: _Optional[int] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("wire_version", "job", "plan_hash", "source", "target", "incarnation", "epoch")
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PLAN_HASH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    wire_version: int
    job: str
    plan_hash: str
    source: int
    target: int
    incarnation: int
    epoch: int
    def __init__(self, wire_version: _Optional[int] = ..., job: _Optional[str] = ..., plan_hash: _Optional[str] = ..., source: _Optional[int] = ..., target: _Optional[int] = ..., incarnation: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("received", "incarnation", "credits")
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    received: int
    incarnation: int
    credits: _containers.RepeatedCompositeFieldContainer[Credit]
    def __init__(self, received: _Optional[int] = ..., incarnation: _Optional[int] = ..., credits: _Optional[_Iterable[_Union[Credit, _Mapping]]] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason", "retry")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    reason: str
    retry: bool
    def __init__(self, reason: _Optional[str] = ..., retry: _Optional[bool] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("received", "credits", "held_us")
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    HELD_US_FIELD_NUMBER: _ClassVar[int]
    received: int
    credits: _containers.RepeatedCompositeFieldContainer[Credit]
    held_us: int
    def __init__(self, received: _Optional[int] = ..., credits: _Optional[_Iterable[_Union[Credit, _Mapping]]] = ..., held_us: _Optional[int] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("edge", "granted_nbytes")
    EDGE_FIELD_NUMBER: _ClassVar[int]
    GRANTED_NBYTES_FIELD_NUMBER: _ClassVar[int]
    edge: int
    granted_nbytes: int
    def __init__(self, edge: _Optional[int] = ..., granted_nbytes: _Optional[int] = ...) -> None: ...
