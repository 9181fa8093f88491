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

class PipelineId(_message.Message):
    __slots__ = ("id", "uuid128")
    ID_FIELD_NUMBER: _ClassVar[int]
    UUID128_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    uuid128: Uuid
    def __init__(self, id: _Optional[bytes] = ..., uuid128: _Optional[_Union[Uuid, _Mapping]] = ...) -> None: ...

class Port(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    value: int
    def __init__(self, name: _Optional[bytes] = ..., value: _Optional[int] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("uuid", "ip_address", "host_name", "ports", "uuid128")
    UUID_FIELD_NUMBER: _ClassVar[int]
    IP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    UUID128_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    ip_address: bytes
    host_name: bytes
    ports: _containers.RepeatedCompositeFieldContainer[Port]
    uuid128: Uuid
    def __init__(self, uuid: _Optional[bytes] = ..., ip_address: _Optional[bytes] = ..., host_name: _Optional[bytes] = ..., ports: _Optional[_Iterable[_Union[Port, _Mapping]]] = ..., uuid128: _Optional[_Union[Uuid, _Mapping]] = ...) -> None: ...

class KeyValue(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("software", "keys")
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    software: int
    keys: _containers.RepeatedCompositeFieldContainer[KeyValue]
    def __init__(self, software: _Optional[int] = ..., keys: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ...) -> None: ...

class Registered(_message.Message):
    __slots__ = ("error", "datanode_id", "cluster_id")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    error: int
    datanode_id: bytes
    cluster_id: bytes
    def __init__(self, error: _Optional[int] = ..., datanode_id: _Optional[bytes] = ..., cluster_id: _Optional[bytes] = ...) -> None: ...

class DeleteTransaction(_message.Message):
    __slots__ = ("transaction_id", "container_id", "local_ids")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_IDS_FIELD_NUMBER: _ClassVar[int]
    transaction_id: int
    container_id: int
    local_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, transaction_id: _Optional[int] = ..., container_id: _Optional[int] = ..., local_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DeleteBlocks(_message.Message):
    __slots__ = ("transactions", "command_id")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[DeleteTransaction]
    command_id: int
    def __init__(self, transactions: _Optional[_Iterable[_Union[DeleteTransaction, _Mapping]]] = ..., command_id: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("container_id", "command_id", "force")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    command_id: int
    force: bool
    def __init__(self, container_id: _Optional[int] = ..., command_id: _Optional[int] = ..., force: bool = ...) -> None: ...

class Delete(_message.Message):
    __slots__ = ("container_id", "command_id", "force", "replica_index")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_INDEX_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    command_id: int
    force: bool
    replica_index: int
    def __init__(self, container_id: _Optional[int] = ..., command_id: _Optional[int] = ..., force: bool = ..., replica_index: _Optional[int] = ...) -> None: ...

class Replicate(_message.Message):
    __slots__ = ("container_id", "sources", "command_id", "replica_index", "target", "priority")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_INDEX_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    sources: _containers.RepeatedCompositeFieldContainer[Peer]
    command_id: int
    replica_index: int
    target: Peer
    priority: int
    def __init__(self, container_id: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., command_id: _Optional[int] = ..., replica_index: _Optional[int] = ..., target: _Optional[_Union[Peer, _Mapping]] = ..., priority: _Optional[int] = ...) -> None: ...

class CreatePipeline(_message.Message):
    __slots__ = ("pipeline_id", "command_id")
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: PipelineId
    command_id: int
    def __init__(self, pipeline_id: _Optional[_Union[PipelineId, _Mapping]] = ..., command_id: _Optional[int] = ...) -> None: ...

class ClosePipeline(_message.Message):
    __slots__ = ("pipeline_id", "command_id")
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: PipelineId
    command_id: int
    def __init__(self, pipeline_id: _Optional[_Union[PipelineId, _Mapping]] = ..., command_id: _Optional[int] = ...) -> None: ...

class OperationalState(_message.Message):
    __slots__ = ("command_id", "state", "expiry_s")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_S_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    state: int
    expiry_s: int
    def __init__(self, command_id: _Optional[int] = ..., state: _Optional[int] = ..., expiry_s: _Optional[int] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("metadata", "software")
    METADATA_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    metadata: int
    software: int
    def __init__(self, metadata: _Optional[int] = ..., software: _Optional[int] = ...) -> None: ...

class FinalizeLayout(_message.Message):
    __slots__ = ("finalize", "layout", "command_id")
    FINALIZE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    finalize: bool
    layout: Layout
    command_id: int
    def __init__(self, finalize: bool = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., command_id: _Optional[int] = ...) -> None: ...

class RefreshVolumeUsage(_message.Message):
    __slots__ = ("command_id",)
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    def __init__(self, command_id: _Optional[int] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("peer", "replica_index")
    PEER_FIELD_NUMBER: _ClassVar[int]
    REPLICA_INDEX_FIELD_NUMBER: _ClassVar[int]
    peer: Peer
    replica_index: int
    def __init__(self, peer: _Optional[_Union[Peer, _Mapping]] = ..., replica_index: _Optional[int] = ...) -> None: ...

class Coding(_message.Message):
    __slots__ = ("data", "parity", "codec", "cell_bytes")
    DATA_FIELD_NUMBER: _ClassVar[int]
    PARITY_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    CELL_BYTES_FIELD_NUMBER: _ClassVar[int]
    data: int
    parity: int
    codec: bytes
    cell_bytes: int
    def __init__(self, data: _Optional[int] = ..., parity: _Optional[int] = ..., codec: _Optional[bytes] = ..., cell_bytes: _Optional[int] = ...) -> None: ...

class Reconstruct(_message.Message):
    __slots__ = ("container_id", "sources", "targets", "missing", "coding", "command_id")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    CODING_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    targets: _containers.RepeatedCompositeFieldContainer[Peer]
    missing: bytes
    coding: Coding
    command_id: int
    def __init__(self, container_id: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., targets: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., missing: _Optional[bytes] = ..., coding: _Optional[_Union[Coding, _Mapping]] = ..., command_id: _Optional[int] = ...) -> None: ...

class Reconcile(_message.Message):
    __slots__ = ("container_id", "peers")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    def __init__(self, container_id: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ...) -> None: ...

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Command(_message.Message):
    __slots__ = ("type", "reregister", "delete_blocks", "close", "delete", "replicate", "create_pipeline", "close_pipeline", "set_operational_state", "finalize_layout", "refresh_volume_usage", "reconstruct", "reconcile", "term", "deadline_ms")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    REREGISTER_FIELD_NUMBER: _ClassVar[int]
    DELETE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    REPLICATE_FIELD_NUMBER: _ClassVar[int]
    CREATE_PIPELINE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_PIPELINE_FIELD_NUMBER: _ClassVar[int]
    SET_OPERATIONAL_STATE_FIELD_NUMBER: _ClassVar[int]
    FINALIZE_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    REFRESH_VOLUME_USAGE_FIELD_NUMBER: _ClassVar[int]
    RECONSTRUCT_FIELD_NUMBER: _ClassVar[int]
    RECONCILE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    type: int
    reregister: Nothing
    delete_blocks: DeleteBlocks
    close: Close
    delete: Delete
    replicate: Replicate
    create_pipeline: CreatePipeline
    close_pipeline: ClosePipeline
    set_operational_state: OperationalState
    finalize_layout: FinalizeLayout
    refresh_volume_usage: RefreshVolumeUsage
    reconstruct: Reconstruct
    reconcile: Reconcile
    term: int
    deadline_ms: int
    def __init__(self, type: _Optional[int] = ..., reregister: _Optional[_Union[Nothing, _Mapping]] = ..., delete_blocks: _Optional[_Union[DeleteBlocks, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., delete: _Optional[_Union[Delete, _Mapping]] = ..., replicate: _Optional[_Union[Replicate, _Mapping]] = ..., create_pipeline: _Optional[_Union[CreatePipeline, _Mapping]] = ..., close_pipeline: _Optional[_Union[ClosePipeline, _Mapping]] = ..., set_operational_state: _Optional[_Union[OperationalState, _Mapping]] = ..., finalize_layout: _Optional[_Union[FinalizeLayout, _Mapping]] = ..., refresh_volume_usage: _Optional[_Union[RefreshVolumeUsage, _Mapping]] = ..., reconstruct: _Optional[_Union[Reconstruct, _Mapping]] = ..., reconcile: _Optional[_Union[Reconcile, _Mapping]] = ..., term: _Optional[int] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class Beaten(_message.Message):
    __slots__ = ("datanode_id", "commands", "term")
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    datanode_id: bytes
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    term: int
    def __init__(self, datanode_id: _Optional[bytes] = ..., commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ..., term: _Optional[int] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("kind", "success", "message", "status", "get_version", "register", "heartbeat")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    GET_VERSION_FIELD_NUMBER: _ClassVar[int]
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    kind: int
    success: bool
    message: bytes
    status: int
    get_version: Version
    register: Registered
    heartbeat: Beaten
    def __init__(self, kind: _Optional[int] = ..., success: bool = ..., message: _Optional[bytes] = ..., status: _Optional[int] = ..., get_version: _Optional[_Union[Version, _Mapping]] = ..., register: _Optional[_Union[Registered, _Mapping]] = ..., heartbeat: _Optional[_Union[Beaten, _Mapping]] = ...) -> None: ...
