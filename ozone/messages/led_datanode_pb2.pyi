from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Uuid(_message.Message):
    __slots__ = ("most", "least")
    MOST_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    most: int
    least: int
    def __init__(self, most: _Optional[int] = ..., least: _Optional[int] = ...) -> None: ...

class DatanodeId(_message.Message):
    __slots__ = ("uuid",)
    UUID_FIELD_NUMBER: _ClassVar[int]
    uuid: Uuid
    def __init__(self, uuid: _Optional[_Union[Uuid, _Mapping]] = ...) -> None: ...

class Port(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...

class Details(_message.Message):
    __slots__ = ("uuid", "ip_address", "host_name", "ports", "network_location", "op_state", "op_state_expiry_s", "current_version", "uuid128", "id")
    UUID_FIELD_NUMBER: _ClassVar[int]
    IP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    NETWORK_LOCATION_FIELD_NUMBER: _ClassVar[int]
    OP_STATE_FIELD_NUMBER: _ClassVar[int]
    OP_STATE_EXPIRY_S_FIELD_NUMBER: _ClassVar[int]
    CURRENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    UUID128_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    ip_address: str
    host_name: str
    ports: _containers.RepeatedCompositeFieldContainer[Port]
    network_location: str
    op_state: int
    op_state_expiry_s: int
    current_version: int
    uuid128: Uuid
    id: DatanodeId
    def __init__(self, uuid: _Optional[str] = ..., ip_address: _Optional[str] = ..., host_name: _Optional[str] = ..., ports: _Optional[_Iterable[_Union[Port, _Mapping]]] = ..., network_location: _Optional[str] = ..., op_state: _Optional[int] = ..., op_state_expiry_s: _Optional[int] = ..., current_version: _Optional[int] = ..., uuid128: _Optional[_Union[Uuid, _Mapping]] = ..., id: _Optional[_Union[DatanodeId, _Mapping]] = ...) -> None: ...

class ExtendedDetails(_message.Message):
    __slots__ = ("details", "version", "setup_time_ms")
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SETUP_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    details: Details
    version: str
    setup_time_ms: int
    def __init__(self, details: _Optional[_Union[Details, _Mapping]] = ..., version: _Optional[str] = ..., setup_time_ms: _Optional[int] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("metadata", "software")
    METADATA_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    metadata: int
    software: int
    def __init__(self, metadata: _Optional[int] = ..., software: _Optional[int] = ...) -> None: ...

class Storage(_message.Message):
    __slots__ = ("uuid", "location", "capacity", "used", "remaining", "type", "failed", "committed", "spare", "reserved", "fs_capacity", "fs_available")
    UUID_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    SPARE_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    FS_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    FS_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    location: str
    capacity: int
    used: int
    remaining: int
    type: int
    failed: bool
    committed: int
    spare: int
    reserved: int
    fs_capacity: int
    fs_available: int
    def __init__(self, uuid: _Optional[str] = ..., location: _Optional[str] = ..., capacity: _Optional[int] = ..., used: _Optional[int] = ..., remaining: _Optional[int] = ..., type: _Optional[int] = ..., failed: bool = ..., committed: _Optional[int] = ..., spare: _Optional[int] = ..., reserved: _Optional[int] = ..., fs_capacity: _Optional[int] = ..., fs_available: _Optional[int] = ...) -> None: ...

class MetadataStorage(_message.Message):
    __slots__ = ("location", "type", "capacity", "used", "remaining", "failed")
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    location: str
    type: int
    capacity: int
    used: int
    remaining: int
    failed: bool
    def __init__(self, location: _Optional[str] = ..., type: _Optional[int] = ..., capacity: _Optional[int] = ..., used: _Optional[int] = ..., remaining: _Optional[int] = ..., failed: bool = ...) -> None: ...

class NodeReport(_message.Message):
    __slots__ = ("storages", "metadata_storages")
    STORAGES_FIELD_NUMBER: _ClassVar[int]
    METADATA_STORAGES_FIELD_NUMBER: _ClassVar[int]
    storages: _containers.RepeatedCompositeFieldContainer[Storage]
    metadata_storages: _containers.RepeatedCompositeFieldContainer[MetadataStorage]
    def __init__(self, storages: _Optional[_Iterable[_Union[Storage, _Mapping]]] = ..., metadata_storages: _Optional[_Iterable[_Union[MetadataStorage, _Mapping]]] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("container_id", "state", "used", "key_count", "bcsid", "origin", "replica_index", "is_empty", "checksum")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    KEY_COUNT_FIELD_NUMBER: _ClassVar[int]
    BCSID_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    REPLICA_INDEX_FIELD_NUMBER: _ClassVar[int]
    IS_EMPTY_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    state: int
    used: int
    key_count: int
    bcsid: int
    origin: str
    replica_index: int
    is_empty: bool
    checksum: int
    def __init__(self, container_id: _Optional[int] = ..., state: _Optional[int] = ..., used: _Optional[int] = ..., key_count: _Optional[int] = ..., bcsid: _Optional[int] = ..., origin: _Optional[str] = ..., replica_index: _Optional[int] = ..., is_empty: bool = ..., checksum: _Optional[int] = ...) -> None: ...

class Replicas(_message.Message):
    __slots__ = ("replicas",)
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    def __init__(self, replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ...) -> None: ...

class PipelineReports(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QueueReport(_message.Message):
    __slots__ = ("commands", "counts")
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    commands: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, commands: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class DeleteResult(_message.Message):
    __slots__ = ("transaction_id", "container_id", "success")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    transaction_id: int
    container_id: int
    success: bool
    def __init__(self, transaction_id: _Optional[int] = ..., container_id: _Optional[int] = ..., success: bool = ...) -> None: ...

class DeleteAck(_message.Message):
    __slots__ = ("results", "datanode_id")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[DeleteResult]
    datanode_id: str
    def __init__(self, results: _Optional[_Iterable[_Union[DeleteResult, _Mapping]]] = ..., datanode_id: _Optional[str] = ...) -> None: ...

class CommandStatus(_message.Message):
    __slots__ = ("command_id", "status", "type", "message", "delete_ack")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DELETE_ACK_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    status: int
    type: int
    message: str
    delete_ack: DeleteAck
    def __init__(self, command_id: _Optional[int] = ..., status: _Optional[int] = ..., type: _Optional[int] = ..., message: _Optional[str] = ..., delete_ack: _Optional[_Union[DeleteAck, _Mapping]] = ...) -> None: ...

class Action(_message.Message):
    __slots__ = ("container_id", "action", "reason")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    action: int
    reason: int
    def __init__(self, container_id: _Optional[int] = ..., action: _Optional[int] = ..., reason: _Optional[int] = ...) -> None: ...

class Actions(_message.Message):
    __slots__ = ("actions",)
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    actions: _containers.RepeatedCompositeFieldContainer[Action]
    def __init__(self, actions: _Optional[_Iterable[_Union[Action, _Mapping]]] = ...) -> None: ...

class CommandStatuses(_message.Message):
    __slots__ = ("statuses",)
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedCompositeFieldContainer[CommandStatus]
    def __init__(self, statuses: _Optional[_Iterable[_Union[CommandStatus, _Mapping]]] = ...) -> None: ...

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Register(_message.Message):
    __slots__ = ("extended_details", "node", "containers", "pipelines", "layout")
    EXTENDED_DETAILS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    PIPELINES_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    extended_details: ExtendedDetails
    node: NodeReport
    containers: Replicas
    pipelines: PipelineReports
    layout: Layout
    def __init__(self, extended_details: _Optional[_Union[ExtendedDetails, _Mapping]] = ..., node: _Optional[_Union[NodeReport, _Mapping]] = ..., containers: _Optional[_Union[Replicas, _Mapping]] = ..., pipelines: _Optional[_Union[PipelineReports, _Mapping]] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("details", "node", "containers", "changed", "statuses", "actions", "pipelines", "layout", "queues")
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    PIPELINES_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    details: Details
    node: NodeReport
    containers: Replicas
    changed: _containers.RepeatedCompositeFieldContainer[Replicas]
    statuses: _containers.RepeatedCompositeFieldContainer[CommandStatuses]
    actions: Actions
    pipelines: PipelineReports
    layout: Layout
    queues: QueueReport
    def __init__(self, details: _Optional[_Union[Details, _Mapping]] = ..., node: _Optional[_Union[NodeReport, _Mapping]] = ..., containers: _Optional[_Union[Replicas, _Mapping]] = ..., changed: _Optional[_Iterable[_Union[Replicas, _Mapping]]] = ..., statuses: _Optional[_Iterable[_Union[CommandStatuses, _Mapping]]] = ..., actions: _Optional[_Union[Actions, _Mapping]] = ..., pipelines: _Optional[_Union[PipelineReports, _Mapping]] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., queues: _Optional[_Union[QueueReport, _Mapping]] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("kind", "get_version", "register", "heartbeat")
    KIND_FIELD_NUMBER: _ClassVar[int]
    GET_VERSION_FIELD_NUMBER: _ClassVar[int]
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    kind: int
    get_version: Nothing
    register: Register
    heartbeat: Heartbeat
    def __init__(self, kind: _Optional[int] = ..., get_version: _Optional[_Union[Nothing, _Mapping]] = ..., register: _Optional[_Union[Register, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...
