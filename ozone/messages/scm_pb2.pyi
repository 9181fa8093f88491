from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

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

class Datanode(_message.Message):
    __slots__ = ("uuid", "ip_address", "host_name", "network_location", "op_state_expiry_s", "uuid128", "id")
    UUID_FIELD_NUMBER: _ClassVar[int]
    IP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    NETWORK_LOCATION_FIELD_NUMBER: _ClassVar[int]
    OP_STATE_EXPIRY_S_FIELD_NUMBER: _ClassVar[int]
    UUID128_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    ip_address: str
    host_name: str
    network_location: str
    op_state_expiry_s: int
    uuid128: Uuid
    id: DatanodeId
    def __init__(self, uuid: _Optional[str] = ..., ip_address: _Optional[str] = ..., host_name: _Optional[str] = ..., network_location: _Optional[str] = ..., op_state_expiry_s: _Optional[int] = ..., uuid128: _Optional[_Union[Uuid, _Mapping]] = ..., id: _Optional[_Union[DatanodeId, _Mapping]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("datanode", "states", "op_states")
    DATANODE_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    OP_STATES_FIELD_NUMBER: _ClassVar[int]
    datanode: Datanode
    states: _containers.RepeatedScalarFieldContainer[int]
    op_states: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, datanode: _Optional[_Union[Datanode, _Mapping]] = ..., states: _Optional[_Iterable[int]] = ..., op_states: _Optional[_Iterable[int]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("capacity", "remaining", "node")
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    capacity: int
    remaining: int
    node: Datanode
    def __init__(self, capacity: _Optional[int] = ..., remaining: _Optional[int] = ..., node: _Optional[_Union[Datanode, _Mapping]] = ...) -> None: ...

class PipelineId(_message.Message):
    __slots__ = ("id", "uuid128")
    ID_FIELD_NUMBER: _ClassVar[int]
    UUID128_FIELD_NUMBER: _ClassVar[int]
    id: str
    uuid128: Uuid
    def __init__(self, id: _Optional[str] = ..., uuid128: _Optional[_Union[Uuid, _Mapping]] = ...) -> None: ...

class Pipeline(_message.Message):
    __slots__ = ("members", "state", "id")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Datanode]
    state: int
    id: PipelineId
    def __init__(self, members: _Optional[_Iterable[_Union[Datanode, _Mapping]]] = ..., state: _Optional[int] = ..., id: _Optional[_Union[PipelineId, _Mapping]] = ...) -> None: ...

class Coding(_message.Message):
    __slots__ = ("data", "parity", "codec")
    DATA_FIELD_NUMBER: _ClassVar[int]
    PARITY_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    data: int
    parity: int
    codec: str
    def __init__(self, data: _Optional[int] = ..., parity: _Optional[int] = ..., codec: _Optional[str] = ...) -> None: ...

class Container(_message.Message):
    __slots__ = ("container_id", "state", "pipeline_id", "used_bytes", "key_count", "state_since_ms", "sequence_id", "factor", "type", "coding", "suppressed")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEY_COUNT_FIELD_NUMBER: _ClassVar[int]
    STATE_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CODING_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    state: int
    pipeline_id: PipelineId
    used_bytes: int
    key_count: int
    state_since_ms: int
    sequence_id: int
    factor: int
    type: int
    coding: Coding
    suppressed: bool
    def __init__(self, container_id: _Optional[int] = ..., state: _Optional[int] = ..., pipeline_id: _Optional[_Union[PipelineId, _Mapping]] = ..., used_bytes: _Optional[int] = ..., key_count: _Optional[int] = ..., state_since_ms: _Optional[int] = ..., sequence_id: _Optional[int] = ..., factor: _Optional[int] = ..., type: _Optional[int] = ..., coding: _Optional[_Union[Coding, _Mapping]] = ..., suppressed: bool = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("container_id", "state", "datanode", "origin", "sequence_id", "key_count", "used_bytes", "index", "checksum")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DATANODE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_COUNT_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    state: str
    datanode: Datanode
    origin: str
    sequence_id: int
    key_count: int
    used_bytes: int
    index: int
    checksum: int
    def __init__(self, container_id: _Optional[int] = ..., state: _Optional[str] = ..., datanode: _Optional[_Union[Datanode, _Mapping]] = ..., origin: _Optional[str] = ..., sequence_id: _Optional[int] = ..., key_count: _Optional[int] = ..., used_bytes: _Optional[int] = ..., index: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class ListContainers(_message.Message):
    __slots__ = ("count", "start")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    count: int
    start: int
    def __init__(self, count: _Optional[int] = ..., start: _Optional[int] = ...) -> None: ...

class ContainersListed(_message.Message):
    __slots__ = ("containers", "total")
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    containers: _containers.RepeatedCompositeFieldContainer[Container]
    total: int
    def __init__(self, containers: _Optional[_Iterable[_Union[Container, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class GetReplicas(_message.Message):
    __slots__ = ("container_id",)
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    def __init__(self, container_id: _Optional[int] = ...) -> None: ...

class ReplicasListed(_message.Message):
    __slots__ = ("replicas",)
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    def __init__(self, replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ...) -> None: ...

class QueryNodes(_message.Message):
    __slots__ = ("scope",)
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    scope: int
    def __init__(self, scope: _Optional[int] = ...) -> None: ...

class NodesListed(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    def __init__(self, nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ...) -> None: ...

class GetUsage(_message.Message):
    __slots__ = ("uuid",)
    UUID_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    def __init__(self, uuid: _Optional[str] = ...) -> None: ...

class UsageTold(_message.Message):
    __slots__ = ("usages",)
    USAGES_FIELD_NUMBER: _ClassVar[int]
    usages: _containers.RepeatedCompositeFieldContainer[Usage]
    def __init__(self, usages: _Optional[_Iterable[_Union[Usage, _Mapping]]] = ...) -> None: ...

class PipelinesListed(_message.Message):
    __slots__ = ("pipelines",)
    PIPELINES_FIELD_NUMBER: _ClassVar[int]
    pipelines: _containers.RepeatedCompositeFieldContainer[Pipeline]
    def __init__(self, pipelines: _Optional[_Iterable[_Union[Pipeline, _Mapping]]] = ...) -> None: ...

class ScmTold(_message.Message):
    __slots__ = ("cluster_id", "scm_id")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SCM_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    scm_id: str
    def __init__(self, cluster_id: _Optional[str] = ..., scm_id: _Optional[str] = ...) -> None: ...

class SafeModeTold(_message.Message):
    __slots__ = ("is_on",)
    IS_ON_FIELD_NUMBER: _ClassVar[int]
    is_on: bool
    def __init__(self, is_on: bool = ...) -> None: ...

class Reconcile(_message.Message):
    __slots__ = ("container_id",)
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    def __init__(self, container_id: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("kind", "version", "list_containers", "query_nodes", "list_pipelines", "get_scm", "get_safe_mode", "get_usage", "get_replicas", "reconcile")
    KIND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LIST_CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    QUERY_NODES_FIELD_NUMBER: _ClassVar[int]
    LIST_PIPELINES_FIELD_NUMBER: _ClassVar[int]
    GET_SCM_FIELD_NUMBER: _ClassVar[int]
    GET_SAFE_MODE_FIELD_NUMBER: _ClassVar[int]
    GET_USAGE_FIELD_NUMBER: _ClassVar[int]
    GET_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    RECONCILE_FIELD_NUMBER: _ClassVar[int]
    kind: int
    version: int
    list_containers: ListContainers
    query_nodes: QueryNodes
    list_pipelines: Nothing
    get_scm: Nothing
    get_safe_mode: Nothing
    get_usage: GetUsage
    get_replicas: GetReplicas
    reconcile: Reconcile
    def __init__(self, kind: _Optional[int] = ..., version: _Optional[int] = ..., list_containers: _Optional[_Union[ListContainers, _Mapping]] = ..., query_nodes: _Optional[_Union[QueryNodes, _Mapping]] = ..., list_pipelines: _Optional[_Union[Nothing, _Mapping]] = ..., get_scm: _Optional[_Union[Nothing, _Mapping]] = ..., get_safe_mode: _Optional[_Union[Nothing, _Mapping]] = ..., get_usage: _Optional[_Union[GetUsage, _Mapping]] = ..., get_replicas: _Optional[_Union[GetReplicas, _Mapping]] = ..., reconcile: _Optional[_Union[Reconcile, _Mapping]] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("kind", "success", "message", "status", "list_containers", "query_nodes", "list_pipelines", "get_scm", "get_safe_mode", "get_usage", "get_replicas", "reconcile")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LIST_CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    QUERY_NODES_FIELD_NUMBER: _ClassVar[int]
    LIST_PIPELINES_FIELD_NUMBER: _ClassVar[int]
    GET_SCM_FIELD_NUMBER: _ClassVar[int]
    GET_SAFE_MODE_FIELD_NUMBER: _ClassVar[int]
    GET_USAGE_FIELD_NUMBER: _ClassVar[int]
    GET_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    RECONCILE_FIELD_NUMBER: _ClassVar[int]
    kind: int
    success: bool
    message: str
    status: int
    list_containers: ContainersListed
    query_nodes: NodesListed
    list_pipelines: PipelinesListed
    get_scm: ScmTold
    get_safe_mode: SafeModeTold
    get_usage: UsageTold
    get_replicas: ReplicasListed
    reconcile: Nothing
    def __init__(self, kind: _Optional[int] = ..., success: bool = ..., message: _Optional[str] = ..., status: _Optional[int] = ..., list_containers: _Optional[_Union[ContainersListed, _Mapping]] = ..., query_nodes: _Optional[_Union[NodesListed, _Mapping]] = ..., list_pipelines: _Optional[_Union[PipelinesListed, _Mapping]] = ..., get_scm: _Optional[_Union[ScmTold, _Mapping]] = ..., get_safe_mode: _Optional[_Union[SafeModeTold, _Mapping]] = ..., get_usage: _Optional[_Union[UsageTold, _Mapping]] = ..., get_replicas: _Optional[_Union[ReplicasListed, _Mapping]] = ..., reconcile: _Optional[_Union[Nothing, _Mapping]] = ...) -> None: ...
