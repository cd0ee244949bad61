from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitRequest(_message.Message):
    __slots__ = ("operation_id", "spec_json", "bundle", "bundle_digest")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    operation_id: str
    spec_json: bytes
    bundle: bytes
    bundle_digest: str
    def __init__(self, operation_id: _Optional[str] = ..., spec_json: _Optional[bytes] = ..., bundle: _Optional[bytes] = ..., bundle_digest: _Optional[str] = ...) -> None: ...

class SubmitReply(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListJobsReply(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class GetJobReply(_message.Message):
    __slots__ = ("status", "statistics", "spec_json", "earlier", "last_lines")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    LAST_LINES_FIELD_NUMBER: _ClassVar[int]
    status: JobStatus
    statistics: _containers.RepeatedCompositeFieldContainer[NodeStatistics]
    spec_json: bytes
    earlier: _containers.RepeatedCompositeFieldContainer[NodeStatistics]
    last_lines: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[_Union[JobStatus, _Mapping]] = ..., statistics: _Optional[_Iterable[_Union[NodeStatistics, _Mapping]]] = ..., spec_json: _Optional[bytes] = ..., earlier: _Optional[_Iterable[_Union[NodeStatistics, _Mapping]]] = ..., last_lines: _Optional[_Iterable[str]] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("job", "name", "state", "reason", "stopped_by", "nodes", "submitted_s", "started_s", "ended_s", "last_report", "node_names", "changes", "master_away", "failed_node", "warnings", "lost_artifacts", "ran_s")
    class ChangesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: NodeChange
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[NodeChange, _Mapping]] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOPPED_BY_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_S_FIELD_NUMBER: _ClassVar[int]
    STARTED_S_FIELD_NUMBER: _ClassVar[int]
    ENDED_S_FIELD_NUMBER: _ClassVar[int]
    LAST_REPORT_FIELD_NUMBER: _ClassVar[int]
    NODE_NAMES_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    MASTER_AWAY_FIELD_NUMBER: _ClassVar[int]
    FAILED_NODE_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    LOST_ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    RAN_S_FIELD_NUMBER: _ClassVar[int]
    job: str
    name: str
    state: str
    reason: str
    stopped_by: str
    nodes: int
    submitted_s: float
    started_s: float
    ended_s: float
    last_report: OperatorReport
    node_names: _containers.RepeatedScalarFieldContainer[str]
    changes: _containers.MessageMap[int, NodeChange]
    master_away: _containers.RepeatedCompositeFieldContainer[Absence]
    failed_node: int
    warnings: _containers.RepeatedCompositeFieldContainer[JobWarning]
    lost_artifacts: _containers.RepeatedScalarFieldContainer[str]
    ran_s: float
    def __init__(self, job: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., stopped_by: _Optional[str] = ..., nodes: _Optional[int] = ..., submitted_s: _Optional[float] = ..., started_s: _Optional[float] = ..., ended_s: _Optional[float] = ..., last_report: _Optional[_Union[OperatorReport, _Mapping]] = ..., node_names: _Optional[_Iterable[str]] = ..., changes: _Optional[_Mapping[int, NodeChange]] = ..., master_away: _Optional[_Iterable[_Union[Absence, _Mapping]]] = ..., failed_node: _Optional[int] = ..., warnings: _Optional[_Iterable[_Union[JobWarning, _Mapping]]] = ..., lost_artifacts: _Optional[_Iterable[str]] = ..., ran_s: _Optional[float] = ...) -> None: ...

class Absence(_message.Message):
    __slots__ = ("from_s", "to_s")
    FROM_S_FIELD_NUMBER: _ClassVar[int]
    TO_S_FIELD_NUMBER: _ClassVar[int]
    from_s: float
    to_s: float
    def __init__(self, from_s: _Optional[float] = ..., to_s: _Optional[float] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("operation_id", "job")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    operation_id: str
    job: str
    def __init__(self, operation_id: _Optional[str] = ..., job: _Optional[str] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainNodeRequest(_message.Message):
    __slots__ = ("operation_id", "name")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    operation_id: str
    name: str
    def __init__(self, operation_id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class DrainNodeReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AdjustRequest(_message.Message):
    __slots__ = ("operation_id", "job", "text")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    operation_id: str
    job: str
    text: str
    def __init__(self, operation_id: _Optional[str] = ..., job: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class AdjustReply(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("job", "since")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    job: str
    since: int
    def __init__(self, job: _Optional[str] = ..., since: _Optional[int] = ...) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ("index", "wall_s", "elapsed_s", "state", "report", "statistics", "change", "warning", "master_away", "adjustment")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    MASTER_AWAY_FIELD_NUMBER: _ClassVar[int]
    ADJUSTMENT_FIELD_NUMBER: _ClassVar[int]
    index: int
    wall_s: float
    elapsed_s: float
    state: StateChange
    report: NodeReport
    statistics: NodeStatistics
    change: NodeChange
    warning: JobWarning
    master_away: Absence
    adjustment: AdjustmentStep
    def __init__(self, index: _Optional[int] = ..., wall_s: _Optional[float] = ..., elapsed_s: _Optional[float] = ..., state: _Optional[_Union[StateChange, _Mapping]] = ..., report: _Optional[_Union[NodeReport, _Mapping]] = ..., statistics: _Optional[_Union[NodeStatistics, _Mapping]] = ..., change: _Optional[_Union[NodeChange, _Mapping]] = ..., warning: _Optional[_Union[JobWarning, _Mapping]] = ..., master_away: _Optional[_Union[Absence, _Mapping]] = ..., adjustment: _Optional[_Union[AdjustmentStep, _Mapping]] = ...) -> None: ...

class AdjustmentStep(_message.Message):
    __slots__ = ("number", "stage", "reason", "touched", "inside_s", "outside_s")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOUCHED_FIELD_NUMBER: _ClassVar[int]
    INSIDE_S_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_S_FIELD_NUMBER: _ClassVar[int]
    number: int
    stage: str
    reason: str
    touched: _containers.RepeatedScalarFieldContainer[int]
    inside_s: float
    outside_s: float
    def __init__(self, number: _Optional[int] = ..., stage: _Optional[str] = ..., reason: _Optional[str] = ..., touched: _Optional[_Iterable[int]] = ..., inside_s: _Optional[float] = ..., outside_s: _Optional[float] = ...) -> None: ...

class JobWarning(_message.Message):
    __slots__ = ("text", "wall_s")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    text: str
    wall_s: float
    def __init__(self, text: _Optional[str] = ..., wall_s: _Optional[float] = ...) -> None: ...

class NodeChange(_message.Message):
    __slots__ = ("node", "life", "incarnation", "epoch", "reason", "wall_s", "name")
    NODE_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    node: int
    life: str
    incarnation: int
    epoch: int
    reason: str
    wall_s: float
    name: str
    def __init__(self, node: _Optional[int] = ..., life: _Optional[str] = ..., incarnation: _Optional[int] = ..., epoch: _Optional[int] = ..., reason: _Optional[str] = ..., wall_s: _Optional[float] = ..., name: _Optional[str] = ...) -> None: ...

class StateChange(_message.Message):
    __slots__ = ("state", "reason", "stopped_by")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOPPED_BY_FIELD_NUMBER: _ClassVar[int]
    state: str
    reason: str
    stopped_by: str
    def __init__(self, state: _Optional[str] = ..., reason: _Optional[str] = ..., stopped_by: _Optional[str] = ...) -> None: ...

class NodeReport(_message.Message):
    __slots__ = ("node", "report")
    NODE_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    node: int
    report: OperatorReport
    def __init__(self, node: _Optional[int] = ..., report: _Optional[_Union[OperatorReport, _Mapping]] = ...) -> None: ...

class OperatorReport(_message.Message):
    __slots__ = ("port", "fields_json")
    PORT_FIELD_NUMBER: _ClassVar[int]
    FIELDS_JSON_FIELD_NUMBER: _ClassVar[int]
    port: str
    fields_json: bytes
    def __init__(self, port: _Optional[str] = ..., fields_json: _Optional[bytes] = ...) -> None: ...

class NodeStatistics(_message.Message):
    __slots__ = ("node", "steps", "tasks", "busy_s", "waiting_s", "sent_nbytes", "received_nbytes", "samples", "running_s", "compute_tasks", "processor", "links_busy_s", "links", "incarnation")
    class BusySEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class SentNbytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class ReceivedNbytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class SamplesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: SampleStatistics
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[SampleStatistics, _Mapping]] = ...) -> None: ...
    class LinksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: LinkStatistics
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[LinkStatistics, _Mapping]] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    WAITING_S_FIELD_NUMBER: _ClassVar[int]
    SENT_NBYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_NBYTES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    RUNNING_S_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_TASKS_FIELD_NUMBER: _ClassVar[int]
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    LINKS_BUSY_S_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    node: int
    steps: int
    tasks: int
    busy_s: _containers.ScalarMap[str, float]
    waiting_s: float
    sent_nbytes: _containers.ScalarMap[int, int]
    received_nbytes: _containers.ScalarMap[int, int]
    samples: _containers.MessageMap[str, SampleStatistics]
    running_s: float
    compute_tasks: int
    processor: ProcessorTimes
    links_busy_s: float
    links: _containers.MessageMap[int, LinkStatistics]
    incarnation: int
    def __init__(self, node: _Optional[int] = ..., steps: _Optional[int] = ..., tasks: _Optional[int] = ..., busy_s: _Optional[_Mapping[str, float]] = ..., waiting_s: _Optional[float] = ..., sent_nbytes: _Optional[_Mapping[int, int]] = ..., received_nbytes: _Optional[_Mapping[int, int]] = ..., samples: _Optional[_Mapping[str, SampleStatistics]] = ..., running_s: _Optional[float] = ..., compute_tasks: _Optional[int] = ..., processor: _Optional[_Union[ProcessorTimes, _Mapping]] = ..., links_busy_s: _Optional[float] = ..., links: _Optional[_Mapping[int, LinkStatistics]] = ..., incarnation: _Optional[int] = ...) -> None: ...

class ProcessorTimes(_message.Message):
    __slots__ = ("process", "compute", "exchange")
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    process: float
    compute: float
    exchange: float
    def __init__(self, process: _Optional[float] = ..., compute: _Optional[float] = ..., exchange: _Optional[float] = ...) -> None: ...

class LinkStatistics(_message.Message):
    __slots__ = ("nbytes", "messages", "busy_s", "delay_s")
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    DELAY_S_FIELD_NUMBER: _ClassVar[int]
    nbytes: int
    messages: int
    busy_s: float
    delay_s: float
    def __init__(self, nbytes: _Optional[int] = ..., messages: _Optional[int] = ..., busy_s: _Optional[float] = ..., delay_s: _Optional[float] = ...) -> None: ...

class SampleStatistics(_message.Message):
    __slots__ = ("count", "total", "maximum", "last")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    count: int
    total: float
    maximum: float
    last: float
    def __init__(self, count: _Optional[int] = ..., total: _Optional[float] = ..., maximum: _Optional[float] = ..., last: _Optional[float] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("job", "follow", "since")
    JOB_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    job: str
    follow: bool
    since: int
    def __init__(self, job: _Optional[str] = ..., follow: _Optional[bool] = ..., since: _Optional[int] = ...) -> None: ...

class LogsReply(_message.Message):
    __slots__ = ("lines", "next")
    LINES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[LogLine]
    next: int
    def __init__(self, lines: _Optional[_Iterable[_Union[LogLine, _Mapping]]] = ..., next: _Optional[int] = ...) -> None: ...

class LogLine(_message.Message):
    __slots__ = ("node", "wall_s", "text")
    NODE_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    node: int
    wall_s: float
    text: str
    def __init__(self, node: _Optional[int] = ..., wall_s: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class ArtifactsRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class ArtifactChunk(_message.Message):
    __slots__ = ("name", "data", "last", "start")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    name: str
    data: bytes
    last: bool
    start: int
    def __init__(self, name: _Optional[str] = ..., data: _Optional[bytes] = ..., last: _Optional[bool] = ..., start: _Optional[int] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListNodesReply(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("name", "host", "cores", "tasks", "job", "silent_s", "progress", "drained")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    name: str
    host: str
    cores: int
    tasks: int
    job: str
    silent_s: float
    progress: int
    drained: bool
    def __init__(self, name: _Optional[str] = ..., host: _Optional[str] = ..., cores: _Optional[int] = ..., tasks: _Optional[int] = ..., job: _Optional[str] = ..., silent_s: _Optional[float] = ..., progress: _Optional[int] = ..., drained: _Optional[bool] = ...) -> None: ...

class AgentMessage(_message.Message):
    __slots__ = ("hello", "heartbeat", "from_process", "log_lines", "exited", "number")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    FROM_PROCESS_FIELD_NUMBER: _ClassVar[int]
    LOG_LINES_FIELD_NUMBER: _ClassVar[int]
    EXITED_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    heartbeat: Heartbeat
    from_process: FromProcess
    log_lines: LogLines
    exited: ProcessExited
    number: int
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., from_process: _Optional[_Union[FromProcess, _Mapping]] = ..., log_lines: _Optional[_Union[LogLines, _Mapping]] = ..., exited: _Optional[_Union[ProcessExited, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("name", "host", "cores", "tasks", "version", "life", "held", "connection")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    host: str
    cores: int
    tasks: int
    version: str
    life: str
    held: _containers.RepeatedCompositeFieldContainer[Held]
    connection: int
    def __init__(self, name: _Optional[str] = ..., host: _Optional[str] = ..., cores: _Optional[int] = ..., tasks: _Optional[int] = ..., version: _Optional[str] = ..., life: _Optional[str] = ..., held: _Optional[_Iterable[_Union[Held, _Mapping]]] = ..., connection: _Optional[int] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("job", "operation_id", "node", "exited")
    JOB_FIELD_NUMBER: _ClassVar[int]
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    EXITED_FIELD_NUMBER: _ClassVar[int]
    job: str
    operation_id: str
    node: int
    exited: int
    def __init__(self, job: _Optional[str] = ..., operation_id: _Optional[str] = ..., node: _Optional[int] = ..., exited: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("progress",)
    class ProgressEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    progress: _containers.ScalarMap[str, int]
    def __init__(self, progress: _Optional[_Mapping[str, int]] = ...) -> None: ...

class FromProcess(_message.Message):
    __slots__ = ("job", "message", "start")
    JOB_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    job: str
    message: ProcessMessage
    start: int
    def __init__(self, job: _Optional[str] = ..., message: _Optional[_Union[ProcessMessage, _Mapping]] = ..., start: _Optional[int] = ...) -> None: ...

class LogLines(_message.Message):
    __slots__ = ("job", "lines")
    JOB_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    job: str
    lines: _containers.RepeatedCompositeFieldContainer[LogLine]
    def __init__(self, job: _Optional[str] = ..., lines: _Optional[_Iterable[_Union[LogLine, _Mapping]]] = ...) -> None: ...

class ProcessExited(_message.Message):
    __slots__ = ("job", "status", "start", "reason")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job: str
    status: int
    start: int
    reason: str
    def __init__(self, job: _Optional[str] = ..., status: _Optional[int] = ..., start: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class MasterMessage(_message.Message):
    __slots__ = ("job", "welcome", "deploy", "connect", "start", "stop", "kill", "state", "kept", "leave", "adjust")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    DEPLOY_FIELD_NUMBER: _ClassVar[int]
    CONNECT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    KILL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    ADJUST_FIELD_NUMBER: _ClassVar[int]
    job: str
    welcome: Welcome
    deploy: Deploy
    connect: Connect
    start: Start
    stop: Stop
    kill: Kill
    state: StateChunk
    kept: Kept
    leave: Leave
    adjust: Adjust
    def __init__(self, job: _Optional[str] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., deploy: _Optional[_Union[Deploy, _Mapping]] = ..., connect: _Optional[_Union[Connect, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., kill: _Optional[_Union[Kill, _Mapping]] = ..., state: _Optional[_Union[StateChunk, _Mapping]] = ..., kept: _Optional[_Union[Kept, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., adjust: _Optional[_Union[Adjust, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("version", "kept", "heard")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    version: str
    kept: int
    heard: int
    def __init__(self, version: _Optional[str] = ..., kept: _Optional[int] = ..., heard: _Optional[int] = ...) -> None: ...

class Kept(_message.Message):
    __slots__ = ("number", "heard")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    number: int
    heard: int
    def __init__(self, number: _Optional[int] = ..., heard: _Optional[int] = ...) -> None: ...

class Deploy(_message.Message):
    __slots__ = ("operation_id", "plan_json", "node", "incarnation", "bundle", "bundle_digest", "token", "host", "job", "record", "resumes", "resumption_json", "certificate", "key", "watchdog_s", "start")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    RESUMPTION_JSON_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    WATCHDOG_S_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    operation_id: str
    plan_json: bytes
    node: int
    incarnation: int
    bundle: bytes
    bundle_digest: str
    token: str
    host: str
    job: str
    record: bool
    resumes: bool
    resumption_json: bytes
    certificate: bytes
    key: bytes
    watchdog_s: float
    start: int
    def __init__(self, operation_id: _Optional[str] = ..., plan_json: _Optional[bytes] = ..., node: _Optional[int] = ..., incarnation: _Optional[int] = ..., bundle: _Optional[bytes] = ..., bundle_digest: _Optional[str] = ..., token: _Optional[str] = ..., host: _Optional[str] = ..., job: _Optional[str] = ..., record: _Optional[bool] = ..., resumes: _Optional[bool] = ..., resumption_json: _Optional[bytes] = ..., certificate: _Optional[bytes] = ..., key: _Optional[bytes] = ..., watchdog_s: _Optional[float] = ..., start: _Optional[int] = ...) -> None: ...

class StateChunk(_message.Message):
    __slots__ = ("resumption_json", "data", "failure")
    RESUMPTION_JSON_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    resumption_json: bytes
    data: bytes
    failure: str
    def __init__(self, resumption_json: _Optional[bytes] = ..., data: _Optional[bytes] = ..., failure: _Optional[str] = ...) -> None: ...

class Connect(_message.Message):
    __slots__ = ("addresses", "epoch", "incarnations", "answers", "ended")
    class AddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    class IncarnationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.ScalarMap[int, str]
    epoch: int
    incarnations: _containers.ScalarMap[int, int]
    answers: int
    ended: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, addresses: _Optional[_Mapping[int, str]] = ..., epoch: _Optional[int] = ..., incarnations: _Optional[_Mapping[int, int]] = ..., answers: _Optional[int] = ..., ended: _Optional[_Iterable[int]] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Stop(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Adjust(_message.Message):
    __slots__ = ("number", "stage", "text")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    number: int
    stage: str
    text: str
    def __init__(self, number: _Optional[int] = ..., stage: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Kill(_message.Message):
    __slots__ = ("grace_s",)
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    grace_s: float
    def __init__(self, grace_s: _Optional[float] = ...) -> None: ...

class ProcessCommand(_message.Message):
    __slots__ = ("deploy", "connect", "start", "stop", "state", "leave", "adjust")
    DEPLOY_FIELD_NUMBER: _ClassVar[int]
    CONNECT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    ADJUST_FIELD_NUMBER: _ClassVar[int]
    deploy: Deploy
    connect: Connect
    start: Start
    stop: Stop
    state: StateChunk
    leave: Leave
    adjust: Adjust
    def __init__(self, deploy: _Optional[_Union[Deploy, _Mapping]] = ..., connect: _Optional[_Union[Connect, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., state: _Optional[_Union[StateChunk, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., adjust: _Optional[_Union[Adjust, _Mapping]] = ...) -> None: ...

class ProcessMessage(_message.Message):
    __slots__ = ("prepared", "ready", "report", "artifact", "statistics", "ended", "failed", "link_broken", "paused", "checkpoint")
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    LINK_BROKEN_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    prepared: Prepared
    ready: Ready
    report: OperatorReport
    artifact: ArtifactChunk
    statistics: NodeStatistics
    ended: Ended
    failed: Failed
    link_broken: LinkBroken
    paused: Paused
    checkpoint: CheckpointChunk
    def __init__(self, prepared: _Optional[_Union[Prepared, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., report: _Optional[_Union[OperatorReport, _Mapping]] = ..., artifact: _Optional[_Union[ArtifactChunk, _Mapping]] = ..., statistics: _Optional[_Union[NodeStatistics, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., link_broken: _Optional[_Union[LinkBroken, _Mapping]] = ..., paused: _Optional[_Union[Paused, _Mapping]] = ..., checkpoint: _Optional[_Union[CheckpointChunk, _Mapping]] = ...) -> None: ...

class LinkBroken(_message.Message):
    __slots__ = ("peer", "reason", "incarnation")
    PEER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    peer: int
    reason: str
    incarnation: int
    def __init__(self, peer: _Optional[int] = ..., reason: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Paused(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class CheckpointChunk(_message.Message):
    __slots__ = ("number", "data", "last")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    number: int
    data: bytes
    last: bool
    def __init__(self, number: _Optional[int] = ..., data: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Ended(_message.Message):
    __slots__ = ("statistics", "epoch")
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    statistics: NodeStatistics
    epoch: int
    def __init__(self, statistics: _Optional[_Union[NodeStatistics, _Mapping]] = ..., epoch: _Optional[int] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("text", "where", "anew", "checkpoint")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    ANEW_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    text: str
    where: str
    anew: bool
    checkpoint: bool
    def __init__(self, text: _Optional[str] = ..., where: _Optional[str] = ..., anew: _Optional[bool] = ..., checkpoint: _Optional[bool] = ...) -> None: ...
