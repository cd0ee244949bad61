from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PhysicalPlan(_message.Message):
    __slots__ = ("graph", "nodes", "chains", "window_nbytes", "seed", "vacant")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    CHAINS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_NBYTES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    VACANT_FIELD_NUMBER: _ClassVar[int]
    graph: LogicalGraph
    nodes: _containers.RepeatedCompositeFieldContainer[NodePlan]
    chains: _containers.RepeatedCompositeFieldContainer[ChainPlan]
    window_nbytes: int
    seed: int
    vacant: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, graph: _Optional[_Union[LogicalGraph, _Mapping]] = ..., nodes: _Optional[_Iterable[_Union[NodePlan, _Mapping]]] = ..., chains: _Optional[_Iterable[_Union[ChainPlan, _Mapping]]] = ..., window_nbytes: _Optional[int] = ..., seed: _Optional[int] = ..., vacant: _Optional[_Iterable[int]] = ...) -> None: ...

class NodePlan(_message.Message):
    __slots__ = ("index", "name", "roles", "compute_tasks", "network_tasks")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_TASKS_FIELD_NUMBER: _ClassVar[int]
    NETWORK_TASKS_FIELD_NUMBER: _ClassVar[int]
    index: int
    name: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    compute_tasks: int
    network_tasks: int
    def __init__(self, index: _Optional[int] = ..., name: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., compute_tasks: _Optional[int] = ..., network_tasks: _Optional[int] = ...) -> None: ...

class ChainPlan(_message.Message):
    __slots__ = ("operators", "role", "pool")
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    operators: _containers.RepeatedScalarFieldContainer[str]
    role: str
    pool: str
    def __init__(self, operators: _Optional[_Iterable[str]] = ..., role: _Optional[str] = ..., pool: _Optional[str] = ...) -> None: ...

class LogicalGraph(_message.Message):
    __slots__ = ("name", "roles", "elements", "operators", "edges", "tensor_scale")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_SCALE_FIELD_NUMBER: _ClassVar[int]
    name: str
    roles: _containers.RepeatedCompositeFieldContainer[Role]
    elements: _containers.RepeatedCompositeFieldContainer[ElementSpec]
    operators: _containers.RepeatedCompositeFieldContainer[OperatorSpec]
    edges: _containers.RepeatedCompositeFieldContainer[Edge]
    tensor_scale: int
    def __init__(self, name: _Optional[str] = ..., roles: _Optional[_Iterable[_Union[Role, _Mapping]]] = ..., elements: _Optional[_Iterable[_Union[ElementSpec, _Mapping]]] = ..., operators: _Optional[_Iterable[_Union[OperatorSpec, _Mapping]]] = ..., edges: _Optional[_Iterable[_Union[Edge, _Mapping]]] = ..., tensor_scale: _Optional[int] = ...) -> None: ...

class Role(_message.Message):
    __slots__ = ("name", "nodes", "word")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    WORD_FIELD_NUMBER: _ClassVar[int]
    name: str
    nodes: int
    word: str
    def __init__(self, name: _Optional[str] = ..., nodes: _Optional[int] = ..., word: _Optional[str] = ...) -> None: ...

class ElementSpec(_message.Message):
    __slots__ = ("name", "role", "kind", "factory", "params", "where", "rebuilt", "form", "grows")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FACTORY_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    REBUILT_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    GROWS_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    kind: str
    factory: str
    params: str
    where: str
    rebuilt: bool
    form: str
    grows: bool
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., kind: _Optional[str] = ..., factory: _Optional[str] = ..., params: _Optional[str] = ..., where: _Optional[str] = ..., rebuilt: _Optional[bool] = ..., form: _Optional[str] = ..., grows: _Optional[bool] = ...) -> None: ...

class OperatorSpec(_message.Message):
    __slots__ = ("id", "role", "kind", "params", "pool", "source", "sends", "receives", "gather", "inputs", "outputs", "uses", "where", "adjusts", "catches_up")
    ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SENDS_FIELD_NUMBER: _ClassVar[int]
    RECEIVES_FIELD_NUMBER: _ClassVar[int]
    GATHER_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    ADJUSTS_FIELD_NUMBER: _ClassVar[int]
    CATCHES_UP_FIELD_NUMBER: _ClassVar[int]
    id: str
    role: str
    kind: str
    params: str
    pool: str
    source: bool
    sends: bool
    receives: bool
    gather: bool
    inputs: _containers.RepeatedCompositeFieldContainer[InputSpec]
    outputs: _containers.RepeatedCompositeFieldContainer[OutputSpec]
    uses: _containers.RepeatedCompositeFieldContainer[UseSpec]
    where: str
    adjusts: bool
    catches_up: bool
    def __init__(self, id: _Optional[str] = ..., role: _Optional[str] = ..., kind: _Optional[str] = ..., params: _Optional[str] = ..., pool: _Optional[str] = ..., source: _Optional[bool] = ..., sends: _Optional[bool] = ..., receives: _Optional[bool] = ..., gather: _Optional[bool] = ..., inputs: _Optional[_Iterable[_Union[InputSpec, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[OutputSpec, _Mapping]]] = ..., uses: _Optional[_Iterable[_Union[UseSpec, _Mapping]]] = ..., where: _Optional[str] = ..., adjusts: _Optional[bool] = ..., catches_up: _Optional[bool] = ...) -> None: ...

class InputSpec(_message.Message):
    __slots__ = ("name", "type", "capacity", "key", "latest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    capacity: int
    key: str
    latest: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., capacity: _Optional[int] = ..., key: _Optional[str] = ..., latest: _Optional[_Iterable[str]] = ...) -> None: ...

class OutputSpec(_message.Message):
    __slots__ = ("name", "types", "reported")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    name: str
    types: _containers.RepeatedScalarFieldContainer[str]
    reported: bool
    def __init__(self, name: _Optional[str] = ..., types: _Optional[_Iterable[str]] = ..., reported: _Optional[bool] = ...) -> None: ...

class UseSpec(_message.Message):
    __slots__ = ("name", "element", "writes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    name: str
    element: str
    writes: bool
    def __init__(self, name: _Optional[str] = ..., element: _Optional[str] = ..., writes: _Optional[bool] = ...) -> None: ...

class Edge(_message.Message):
    __slots__ = ("source", "output", "target", "input", "route", "loopback", "key")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    LOOPBACK_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    source: str
    output: str
    target: str
    input: str
    route: str
    loopback: bool
    key: str
    def __init__(self, source: _Optional[str] = ..., output: _Optional[str] = ..., target: _Optional[str] = ..., input: _Optional[str] = ..., route: _Optional[str] = ..., loopback: _Optional[bool] = ..., key: _Optional[str] = ...) -> None: ...
