from suture.wire.v1 import container_pb2 as _container_pb2
from suture.wire.v1 import datanode_pb2 as _datanode_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    NORMAL: _ClassVar[Priority]
    LOW: _ClassVar[Priority]
PRIORITY_UNSPECIFIED: Priority
NORMAL: Priority
LOW: Priority

class SeenStart(_message.Message):
    __slots__ = ("start_id", "term", "state_number")
    START_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    STATE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    start_id: str
    term: int
    state_number: int
    def __init__(self, start_id: _Optional[str] = ..., term: _Optional[int] = ..., state_number: _Optional[int] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("datanode_id", "address", "rack", "version", "cluster_id", "volumes", "boot_id", "op_state", "op_expiry_ms", "layout_version", "seen_starts")
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    OP_STATE_FIELD_NUMBER: _ClassVar[int]
    OP_EXPIRY_MS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_VERSION_FIELD_NUMBER: _ClassVar[int]
    SEEN_STARTS_FIELD_NUMBER: _ClassVar[int]
    datanode_id: str
    address: str
    rack: str
    version: str
    cluster_id: str
    volumes: _containers.RepeatedCompositeFieldContainer[_datanode_pb2.VolumeStatus]
    boot_id: int
    op_state: str
    op_expiry_ms: int
    layout_version: int
    seen_starts: _containers.RepeatedCompositeFieldContainer[SeenStart]
    def __init__(self, datanode_id: _Optional[str] = ..., address: _Optional[str] = ..., rack: _Optional[str] = ..., version: _Optional[str] = ..., cluster_id: _Optional[str] = ..., volumes: _Optional[_Iterable[_Union[_datanode_pb2.VolumeStatus, _Mapping]]] = ..., boot_id: _Optional[int] = ..., op_state: _Optional[str] = ..., op_expiry_ms: _Optional[int] = ..., layout_version: _Optional[int] = ..., seen_starts: _Optional[_Iterable[_Union[SeenStart, _Mapping]]] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("cluster_id", "heartbeat_interval_ms")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    heartbeat_interval_ms: int
    def __init__(self, cluster_id: _Optional[str] = ..., heartbeat_interval_ms: _Optional[int] = ...) -> None: ...

class ContainerReport(_message.Message):
    __slots__ = ("full", "report_id", "page", "last", "replicas")
    FULL_FIELD_NUMBER: _ClassVar[int]
    REPORT_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    full: bool
    report_id: int
    page: int
    last: bool
    replicas: _containers.RepeatedCompositeFieldContainer[_container_pb2.ReplicaReport]
    def __init__(self, full: bool = ..., report_id: _Optional[int] = ..., page: _Optional[int] = ..., last: bool = ..., replicas: _Optional[_Iterable[_Union[_container_pb2.ReplicaReport, _Mapping]]] = ...) -> None: ...

class ReplicaColumns(_message.Message):
    __slots__ = ("count", "container_id", "state", "replica_index", "flags", "algorithm", "finding_count", "used_bytes", "block_count", "bcsid", "data_scan_at_ms", "root", "generation", "tree_block_count", "tombstone_count", "tombstones_checksum", "origin", "volume", "error", "words")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_INDEX_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    FINDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    BCSID_FIELD_NUMBER: _ClassVar[int]
    DATA_SCAN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TREE_BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONES_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    count: int
    container_id: bytes
    state: bytes
    replica_index: bytes
    flags: bytes
    algorithm: bytes
    finding_count: bytes
    used_bytes: bytes
    block_count: bytes
    bcsid: bytes
    data_scan_at_ms: bytes
    root: bytes
    generation: bytes
    tree_block_count: bytes
    tombstone_count: bytes
    tombstones_checksum: bytes
    origin: bytes
    volume: bytes
    error: bytes
    words: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, count: _Optional[int] = ..., container_id: _Optional[bytes] = ..., state: _Optional[bytes] = ..., replica_index: _Optional[bytes] = ..., flags: _Optional[bytes] = ..., algorithm: _Optional[bytes] = ..., finding_count: _Optional[bytes] = ..., used_bytes: _Optional[bytes] = ..., block_count: _Optional[bytes] = ..., bcsid: _Optional[bytes] = ..., data_scan_at_ms: _Optional[bytes] = ..., root: _Optional[bytes] = ..., generation: _Optional[bytes] = ..., tree_block_count: _Optional[bytes] = ..., tombstone_count: _Optional[bytes] = ..., tombstones_checksum: _Optional[bytes] = ..., origin: _Optional[bytes] = ..., volume: _Optional[bytes] = ..., error: _Optional[bytes] = ..., words: _Optional[_Iterable[str]] = ...) -> None: ...

class ColumnReport(_message.Message):
    __slots__ = ("report_id", "page", "last", "replicas")
    REPORT_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    report_id: int
    page: int
    last: bool
    replicas: ReplicaColumns
    def __init__(self, report_id: _Optional[int] = ..., page: _Optional[int] = ..., last: bool = ..., replicas: _Optional[_Union[ReplicaColumns, _Mapping]] = ...) -> None: ...

class CommandStatus(_message.Message):
    __slots__ = ("command_id", "state", "type", "container_id", "code", "message", "reconcile", "replicate", "delete_blocks", "reconstruct")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[CommandStatus.State]
        EXECUTED: _ClassVar[CommandStatus.State]
        FAILED: _ClassVar[CommandStatus.State]
        SKIPPED: _ClassVar[CommandStatus.State]
    STATE_UNSPECIFIED: CommandStatus.State
    EXECUTED: CommandStatus.State
    FAILED: CommandStatus.State
    SKIPPED: CommandStatus.State
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RECONCILE_FIELD_NUMBER: _ClassVar[int]
    REPLICATE_FIELD_NUMBER: _ClassVar[int]
    DELETE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RECONSTRUCT_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    state: CommandStatus.State
    type: str
    container_id: int
    code: str
    message: str
    reconcile: ReconcileOutcome
    replicate: ReplicateOutcome
    delete_blocks: DeleteBlocksOutcome
    reconstruct: ReconstructOutcome
    def __init__(self, command_id: _Optional[int] = ..., state: _Optional[_Union[CommandStatus.State, str]] = ..., type: _Optional[str] = ..., container_id: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., reconcile: _Optional[_Union[ReconcileOutcome, _Mapping]] = ..., replicate: _Optional[_Union[ReplicateOutcome, _Mapping]] = ..., delete_blocks: _Optional[_Union[DeleteBlocksOutcome, _Mapping]] = ..., reconstruct: _Optional[_Union[ReconstructOutcome, _Mapping]] = ...) -> None: ...

class QueueCount(_message.Message):
    __slots__ = ("type", "count")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    type: str
    count: int
    def __init__(self, type: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("datanode_id", "boot_id", "volumes", "reports", "command_statuses", "queues", "op_state", "op_expiry_ms", "column_reports", "seen_starts")
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    COMMAND_STATUSES_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    OP_STATE_FIELD_NUMBER: _ClassVar[int]
    OP_EXPIRY_MS_FIELD_NUMBER: _ClassVar[int]
    COLUMN_REPORTS_FIELD_NUMBER: _ClassVar[int]
    SEEN_STARTS_FIELD_NUMBER: _ClassVar[int]
    datanode_id: str
    boot_id: int
    volumes: _containers.RepeatedCompositeFieldContainer[_datanode_pb2.VolumeStatus]
    reports: _containers.RepeatedCompositeFieldContainer[ContainerReport]
    command_statuses: _containers.RepeatedCompositeFieldContainer[CommandStatus]
    queues: _containers.RepeatedCompositeFieldContainer[QueueCount]
    op_state: str
    op_expiry_ms: int
    column_reports: _containers.RepeatedCompositeFieldContainer[ColumnReport]
    seen_starts: _containers.RepeatedCompositeFieldContainer[SeenStart]
    def __init__(self, datanode_id: _Optional[str] = ..., boot_id: _Optional[int] = ..., volumes: _Optional[_Iterable[_Union[_datanode_pb2.VolumeStatus, _Mapping]]] = ..., reports: _Optional[_Iterable[_Union[ContainerReport, _Mapping]]] = ..., command_statuses: _Optional[_Iterable[_Union[CommandStatus, _Mapping]]] = ..., queues: _Optional[_Iterable[_Union[QueueCount, _Mapping]]] = ..., op_state: _Optional[str] = ..., op_expiry_ms: _Optional[int] = ..., column_reports: _Optional[_Iterable[_Union[ColumnReport, _Mapping]]] = ..., seen_starts: _Optional[_Iterable[_Union[SeenStart, _Mapping]]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("term", "commands", "reregister", "sole_healthy_container_ids", "start_id", "state_number", "copy_bytes_per_s", "reconcile_bytes_per_s", "answered_at_ms")
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    REREGISTER_FIELD_NUMBER: _ClassVar[int]
    SOLE_HEALTHY_CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    START_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    COPY_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    RECONCILE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    term: int
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    reregister: bool
    sole_healthy_container_ids: _containers.RepeatedScalarFieldContainer[int]
    start_id: str
    state_number: int
    copy_bytes_per_s: int
    reconcile_bytes_per_s: int
    answered_at_ms: int
    def __init__(self, term: _Optional[int] = ..., commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ..., reregister: bool = ..., sole_healthy_container_ids: _Optional[_Iterable[int]] = ..., start_id: _Optional[str] = ..., state_number: _Optional[int] = ..., copy_bytes_per_s: _Optional[int] = ..., reconcile_bytes_per_s: _Optional[int] = ..., answered_at_ms: _Optional[int] = ...) -> None: ...

class ConfirmDeletesRequest(_message.Message):
    __slots__ = ("container_id", "local_ids")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_IDS_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    local_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, container_id: _Optional[int] = ..., local_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ConfirmDeletesResponse(_message.Message):
    __slots__ = ("ordered_local_ids", "kept_local_ids")
    ORDERED_LOCAL_IDS_FIELD_NUMBER: _ClassVar[int]
    KEPT_LOCAL_IDS_FIELD_NUMBER: _ClassVar[int]
    ordered_local_ids: _containers.RepeatedScalarFieldContainer[int]
    kept_local_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ordered_local_ids: _Optional[_Iterable[int]] = ..., kept_local_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class CloseCommand(_message.Message):
    __slots__ = ("container_id", "bcsid", "force")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    BCSID_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    bcsid: int
    force: bool
    def __init__(self, container_id: _Optional[int] = ..., bcsid: _Optional[int] = ..., force: bool = ...) -> None: ...

class DeleteCommand(_message.Message):
    __slots__ = ("container_id", "force", "witnesses")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    WITNESSES_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    force: bool
    witnesses: _containers.RepeatedCompositeFieldContainer[_container_pb2.DatanodeEndpoint]
    def __init__(self, container_id: _Optional[int] = ..., force: bool = ..., witnesses: _Optional[_Iterable[_Union[_container_pb2.DatanodeEndpoint, _Mapping]]] = ...) -> None: ...

class ReconcileCommand(_message.Message):
    __slots__ = ("container_id", "peers", "scheme", "holders", "asked_for")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    ASKED_FOR_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    peers: _containers.RepeatedCompositeFieldContainer[_container_pb2.DatanodeEndpoint]
    scheme: str
    holders: _containers.RepeatedCompositeFieldContainer[KnownHolder]
    asked_for: bool
    def __init__(self, container_id: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[_container_pb2.DatanodeEndpoint, _Mapping]]] = ..., scheme: _Optional[str] = ..., holders: _Optional[_Iterable[_Union[KnownHolder, _Mapping]]] = ..., asked_for: bool = ...) -> None: ...

class KnownHolder(_message.Message):
    __slots__ = ("datanode_id", "tree", "is_empty", "is_dead")
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    IS_EMPTY_FIELD_NUMBER: _ClassVar[int]
    IS_DEAD_FIELD_NUMBER: _ClassVar[int]
    datanode_id: str
    tree: _container_pb2.TreeSummary
    is_empty: bool
    is_dead: bool
    def __init__(self, datanode_id: _Optional[str] = ..., tree: _Optional[_Union[_container_pb2.TreeSummary, _Mapping]] = ..., is_empty: bool = ..., is_dead: bool = ...) -> None: ...

class ReplicateCommand(_message.Message):
    __slots__ = ("container_id", "target", "sources", "replica_index")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    REPLICA_INDEX_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    target: _container_pb2.DatanodeEndpoint
    sources: _containers.RepeatedCompositeFieldContainer[_container_pb2.DatanodeEndpoint]
    replica_index: int
    def __init__(self, container_id: _Optional[int] = ..., target: _Optional[_Union[_container_pb2.DatanodeEndpoint, _Mapping]] = ..., sources: _Optional[_Iterable[_Union[_container_pb2.DatanodeEndpoint, _Mapping]]] = ..., replica_index: _Optional[int] = ...) -> None: ...

class DeleteBlocksCommand(_message.Message):
    __slots__ = ("transactions",)
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[DeleteTransaction]
    def __init__(self, transactions: _Optional[_Iterable[_Union[DeleteTransaction, _Mapping]]] = ...) -> None: ...

class DeleteTransaction(_message.Message):
    __slots__ = ("transaction_id", "container_id", "local_ids", "keep")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_IDS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    transaction_id: int
    container_id: int
    local_ids: _containers.RepeatedScalarFieldContainer[int]
    keep: bool
    def __init__(self, transaction_id: _Optional[int] = ..., container_id: _Optional[int] = ..., local_ids: _Optional[_Iterable[int]] = ..., keep: bool = ...) -> None: ...

class SetOperationalStateCommand(_message.Message):
    __slots__ = ("op_state", "op_expiry_ms")
    OP_STATE_FIELD_NUMBER: _ClassVar[int]
    OP_EXPIRY_MS_FIELD_NUMBER: _ClassVar[int]
    op_state: str
    op_expiry_ms: int
    def __init__(self, op_state: _Optional[str] = ..., op_expiry_ms: _Optional[int] = ...) -> None: ...

class RefreshVolumeUsageCommand(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReregisterCommand(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EcScheme(_message.Message):
    __slots__ = ("codec", "data", "parity", "cell_bytes")
    CODEC_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PARITY_FIELD_NUMBER: _ClassVar[int]
    CELL_BYTES_FIELD_NUMBER: _ClassVar[int]
    codec: str
    data: int
    parity: int
    cell_bytes: int
    def __init__(self, codec: _Optional[str] = ..., data: _Optional[int] = ..., parity: _Optional[int] = ..., cell_bytes: _Optional[int] = ...) -> None: ...

class EcShard(_message.Message):
    __slots__ = ("datanode", "replica_index")
    DATANODE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_INDEX_FIELD_NUMBER: _ClassVar[int]
    datanode: _container_pb2.DatanodeEndpoint
    replica_index: int
    def __init__(self, datanode: _Optional[_Union[_container_pb2.DatanodeEndpoint, _Mapping]] = ..., replica_index: _Optional[int] = ...) -> None: ...

class ReconstructCommand(_message.Message):
    __slots__ = ("container_id", "scheme", "sources", "targets")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    scheme: EcScheme
    sources: _containers.RepeatedCompositeFieldContainer[EcShard]
    targets: _containers.RepeatedCompositeFieldContainer[EcShard]
    def __init__(self, container_id: _Optional[int] = ..., scheme: _Optional[_Union[EcScheme, _Mapping]] = ..., sources: _Optional[_Iterable[_Union[EcShard, _Mapping]]] = ..., targets: _Optional[_Iterable[_Union[EcShard, _Mapping]]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("command_id", "term", "lifetime_ms", "priority", "close", "delete", "reconcile", "replicate", "delete_blocks", "set_operational_state", "refresh_volume_usage", "reregister", "reconstruct")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    RECONCILE_FIELD_NUMBER: _ClassVar[int]
    REPLICATE_FIELD_NUMBER: _ClassVar[int]
    DELETE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SET_OPERATIONAL_STATE_FIELD_NUMBER: _ClassVar[int]
    REFRESH_VOLUME_USAGE_FIELD_NUMBER: _ClassVar[int]
    REREGISTER_FIELD_NUMBER: _ClassVar[int]
    RECONSTRUCT_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    term: int
    lifetime_ms: int
    priority: Priority
    close: CloseCommand
    delete: DeleteCommand
    reconcile: ReconcileCommand
    replicate: ReplicateCommand
    delete_blocks: DeleteBlocksCommand
    set_operational_state: SetOperationalStateCommand
    refresh_volume_usage: RefreshVolumeUsageCommand
    reregister: ReregisterCommand
    reconstruct: ReconstructCommand
    def __init__(self, command_id: _Optional[int] = ..., term: _Optional[int] = ..., lifetime_ms: _Optional[int] = ..., priority: _Optional[_Union[Priority, str]] = ..., close: _Optional[_Union[CloseCommand, _Mapping]] = ..., delete: _Optional[_Union[DeleteCommand, _Mapping]] = ..., reconcile: _Optional[_Union[ReconcileCommand, _Mapping]] = ..., replicate: _Optional[_Union[ReplicateCommand, _Mapping]] = ..., delete_blocks: _Optional[_Union[DeleteBlocksCommand, _Mapping]] = ..., set_operational_state: _Optional[_Union[SetOperationalStateCommand, _Mapping]] = ..., refresh_volume_usage: _Optional[_Union[RefreshVolumeUsageCommand, _Mapping]] = ..., reregister: _Optional[_Union[ReregisterCommand, _Mapping]] = ..., reconstruct: _Optional[_Union[ReconstructCommand, _Mapping]] = ...) -> None: ...

class ReplicateOutcome(_message.Message):
    __slots__ = ("result", "bytes_sent", "block_count", "damaged_chunk_count", "duration_ms", "replica")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_CHUNK_COUNT_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    result: str
    bytes_sent: int
    block_count: int
    damaged_chunk_count: int
    duration_ms: int
    replica: _container_pb2.ReplicaReport
    def __init__(self, result: _Optional[str] = ..., bytes_sent: _Optional[int] = ..., block_count: _Optional[int] = ..., damaged_chunk_count: _Optional[int] = ..., duration_ms: _Optional[int] = ..., replica: _Optional[_Union[_container_pb2.ReplicaReport, _Mapping]] = ...) -> None: ...

class DeleteBlocksOutcome(_message.Message):
    __slots__ = ("transactions",)
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[DeleteTransactionResult]
    def __init__(self, transactions: _Optional[_Iterable[_Union[DeleteTransactionResult, _Mapping]]] = ...) -> None: ...

class DeleteTransactionResult(_message.Message):
    __slots__ = ("transaction_id", "container_id", "done", "block_count", "bytes_freed", "code", "message")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FREED_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    transaction_id: int
    container_id: int
    done: bool
    block_count: int
    bytes_freed: int
    code: str
    message: str
    def __init__(self, transaction_id: _Optional[int] = ..., container_id: _Optional[int] = ..., done: bool = ..., block_count: _Optional[int] = ..., bytes_freed: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ReconstructOutcome(_message.Message):
    __slots__ = ("bytes_read", "bytes_written", "block_count", "orphan_count", "orphan_local_ids", "replaced_sources", "duration_ms")
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    BYTES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_COUNT_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_LOCAL_IDS_FIELD_NUMBER: _ClassVar[int]
    REPLACED_SOURCES_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    bytes_read: int
    bytes_written: int
    block_count: int
    orphan_count: int
    orphan_local_ids: _containers.RepeatedScalarFieldContainer[int]
    replaced_sources: _containers.RepeatedScalarFieldContainer[str]
    duration_ms: int
    def __init__(self, bytes_read: _Optional[int] = ..., bytes_written: _Optional[int] = ..., block_count: _Optional[int] = ..., orphan_count: _Optional[int] = ..., orphan_local_ids: _Optional[_Iterable[int]] = ..., replaced_sources: _Optional[_Iterable[str]] = ..., duration_ms: _Optional[int] = ...) -> None: ...

class PeerOutcome(_message.Message):
    __slots__ = ("datanode_id", "state", "message", "tree_bytes", "data_bytes", "chunks")
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    datanode_id: str
    state: str
    message: str
    tree_bytes: int
    data_bytes: int
    chunks: int
    def __init__(self, datanode_id: _Optional[str] = ..., state: _Optional[str] = ..., message: _Optional[str] = ..., tree_bytes: _Optional[int] = ..., data_bytes: _Optional[int] = ..., chunks: _Optional[int] = ...) -> None: ...

class ChunkOutcome(_message.Message):
    __slots__ = ("local_id", "offset", "length", "difference", "result", "source", "message")
    LOCAL_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    local_id: int
    offset: int
    length: int
    difference: str
    result: str
    source: str
    message: str
    def __init__(self, local_id: _Optional[int] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., difference: _Optional[str] = ..., result: _Optional[str] = ..., source: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ReconcileOutcome(_message.Message):
    __slots__ = ("container_id", "result", "peers", "chunks", "chunk_count", "bytes_fetched", "tree_bytes_fetched", "tree_before", "tree_after", "state_before", "state_after", "duration_ms", "differences", "proof")
    class DifferencesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FETCHED_FIELD_NUMBER: _ClassVar[int]
    TREE_BYTES_FETCHED_FIELD_NUMBER: _ClassVar[int]
    TREE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    TREE_AFTER_FIELD_NUMBER: _ClassVar[int]
    STATE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    STATE_AFTER_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    result: str
    peers: _containers.RepeatedCompositeFieldContainer[PeerOutcome]
    chunks: _containers.RepeatedCompositeFieldContainer[ChunkOutcome]
    chunk_count: int
    bytes_fetched: int
    tree_bytes_fetched: int
    tree_before: _container_pb2.TreeSummary
    tree_after: _container_pb2.TreeSummary
    state_before: _container_pb2.ReplicaState
    state_after: _container_pb2.ReplicaState
    duration_ms: int
    differences: _containers.ScalarMap[str, int]
    proof: str
    def __init__(self, container_id: _Optional[int] = ..., result: _Optional[str] = ..., peers: _Optional[_Iterable[_Union[PeerOutcome, _Mapping]]] = ..., chunks: _Optional[_Iterable[_Union[ChunkOutcome, _Mapping]]] = ..., chunk_count: _Optional[int] = ..., bytes_fetched: _Optional[int] = ..., tree_bytes_fetched: _Optional[int] = ..., tree_before: _Optional[_Union[_container_pb2.TreeSummary, _Mapping]] = ..., tree_after: _Optional[_Union[_container_pb2.TreeSummary, _Mapping]] = ..., state_before: _Optional[_Union[_container_pb2.ReplicaState, str]] = ..., state_after: _Optional[_Union[_container_pb2.ReplicaState, str]] = ..., duration_ms: _Optional[int] = ..., differences: _Optional[_Mapping[str, int]] = ..., proof: _Optional[str] = ...) -> None: ...

class AllocateBlocksRequest(_message.Message):
    __slots__ = ("client_id", "sizes", "keys", "scheme")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    sizes: _containers.RepeatedScalarFieldContainer[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    scheme: str
    def __init__(self, client_id: _Optional[str] = ..., sizes: _Optional[_Iterable[int]] = ..., keys: _Optional[_Iterable[str]] = ..., scheme: _Optional[str] = ...) -> None: ...

class BlockAllocation(_message.Message):
    __slots__ = ("block_id", "replicas")
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    block_id: _container_pb2.BlockId
    replicas: _containers.RepeatedCompositeFieldContainer[_container_pb2.DatanodeEndpoint]
    def __init__(self, block_id: _Optional[_Union[_container_pb2.BlockId, _Mapping]] = ..., replicas: _Optional[_Iterable[_Union[_container_pb2.DatanodeEndpoint, _Mapping]]] = ...) -> None: ...

class AllocateBlocksResponse(_message.Message):
    __slots__ = ("blocks", "renew_ms")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RENEW_MS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[BlockAllocation]
    renew_ms: int
    def __init__(self, blocks: _Optional[_Iterable[_Union[BlockAllocation, _Mapping]]] = ..., renew_ms: _Optional[int] = ...) -> None: ...

class BlockLocation(_message.Message):
    __slots__ = ("block_id", "length")
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    block_id: _container_pb2.BlockId
    length: int
    def __init__(self, block_id: _Optional[_Union[_container_pb2.BlockId, _Mapping]] = ..., length: _Optional[int] = ...) -> None: ...

class KeyInfo(_message.Message):
    __slots__ = ("key", "size", "created_at_ms", "blocks", "lost_container_ids")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LOST_CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    key: str
    size: int
    created_at_ms: int
    blocks: _containers.RepeatedCompositeFieldContainer[BlockLocation]
    lost_container_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, key: _Optional[str] = ..., size: _Optional[int] = ..., created_at_ms: _Optional[int] = ..., blocks: _Optional[_Iterable[_Union[BlockLocation, _Mapping]]] = ..., lost_container_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class CommitKeyRequest(_message.Message):
    __slots__ = ("client_id", "keys", "replace", "failed")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    keys: _containers.RepeatedCompositeFieldContainer[KeyInfo]
    replace: bool
    failed: _containers.RepeatedCompositeFieldContainer[FailedReplica]
    def __init__(self, client_id: _Optional[str] = ..., keys: _Optional[_Iterable[_Union[KeyInfo, _Mapping]]] = ..., replace: bool = ..., failed: _Optional[_Iterable[_Union[FailedReplica, _Mapping]]] = ...) -> None: ...

class FailedReplica(_message.Message):
    __slots__ = ("container_id", "datanode_id")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    datanode_id: str
    def __init__(self, container_id: _Optional[int] = ..., datanode_id: _Optional[str] = ...) -> None: ...

class CommitKeyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LookupKeyRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class LookupKeyResponse(_message.Message):
    __slots__ = ("key", "containers")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    key: KeyInfo
    containers: _containers.RepeatedCompositeFieldContainer[ContainerReplicas]
    def __init__(self, key: _Optional[_Union[KeyInfo, _Mapping]] = ..., containers: _Optional[_Iterable[_Union[ContainerReplicas, _Mapping]]] = ...) -> None: ...

class ContainerReplicas(_message.Message):
    __slots__ = ("container_id", "replicas", "scheme", "equal_count")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    EQUAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    replicas: _containers.RepeatedCompositeFieldContainer[_container_pb2.DatanodeEndpoint]
    scheme: str
    equal_count: int
    def __init__(self, container_id: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[_container_pb2.DatanodeEndpoint, _Mapping]]] = ..., scheme: _Optional[str] = ..., equal_count: _Optional[int] = ...) -> None: ...

class ListKeysRequest(_message.Message):
    __slots__ = ("prefix", "start_after", "count", "container_ids")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    start_after: str
    count: int
    container_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, prefix: _Optional[str] = ..., start_after: _Optional[str] = ..., count: _Optional[int] = ..., container_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ListKeysResponse(_message.Message):
    __slots__ = ("keys", "next_start_after")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NEXT_START_AFTER_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[KeyInfo]
    next_start_after: str
    def __init__(self, keys: _Optional[_Iterable[_Union[KeyInfo, _Mapping]]] = ..., next_start_after: _Optional[str] = ...) -> None: ...

class EndWriteSessionRequest(_message.Message):
    __slots__ = ("client_id", "close")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    close: bool
    def __init__(self, client_id: _Optional[str] = ..., close: bool = ...) -> None: ...

class EndWriteSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeInfo(_message.Message):
    __slots__ = ("datanode_id", "address", "rack", "version", "health", "op_state", "last_heartbeat_at_ms", "container_count", "volumes", "queues", "layout_version", "read_only", "unmanaged")
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    OP_STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_HEARTBEAT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_COUNT_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_VERSION_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    UNMANAGED_FIELD_NUMBER: _ClassVar[int]
    datanode_id: str
    address: str
    rack: str
    version: str
    health: str
    op_state: str
    last_heartbeat_at_ms: int
    container_count: int
    volumes: _containers.RepeatedCompositeFieldContainer[_datanode_pb2.VolumeStatus]
    queues: _containers.RepeatedCompositeFieldContainer[QueueCount]
    layout_version: int
    read_only: bool
    unmanaged: bool
    def __init__(self, datanode_id: _Optional[str] = ..., address: _Optional[str] = ..., rack: _Optional[str] = ..., version: _Optional[str] = ..., health: _Optional[str] = ..., op_state: _Optional[str] = ..., last_heartbeat_at_ms: _Optional[int] = ..., container_count: _Optional[int] = ..., volumes: _Optional[_Iterable[_Union[_datanode_pb2.VolumeStatus, _Mapping]]] = ..., queues: _Optional[_Iterable[_Union[QueueCount, _Mapping]]] = ..., layout_version: _Optional[int] = ..., read_only: bool = ..., unmanaged: bool = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListNodesResponse(_message.Message):
    __slots__ = ("nodes", "cluster_id", "version", "started_at_ms")
    NODES_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeInfo]
    cluster_id: str
    version: str
    started_at_ms: int
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeInfo, _Mapping]]] = ..., cluster_id: _Optional[str] = ..., version: _Optional[str] = ..., started_at_ms: _Optional[int] = ...) -> None: ...

class ContainerInfo(_message.Message):
    __slots__ = ("container_id", "state", "replication_factor", "sequence_id", "used_bytes", "replicas", "checksums", "scheme", "wait")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    state: str
    replication_factor: int
    sequence_id: int
    used_bytes: int
    replicas: _containers.RepeatedCompositeFieldContainer[ContainerInfoReplica]
    checksums: str
    scheme: str
    wait: ContainerWait
    def __init__(self, container_id: _Optional[int] = ..., state: _Optional[str] = ..., replication_factor: _Optional[int] = ..., sequence_id: _Optional[int] = ..., used_bytes: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[ContainerInfoReplica, _Mapping]]] = ..., checksums: _Optional[str] = ..., scheme: _Optional[str] = ..., wait: _Optional[_Union[ContainerWait, _Mapping]] = ...) -> None: ...

class ContainerWait(_message.Message):
    __slots__ = ("container_id", "condition", "since_ms", "try_count", "reasons")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    TRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    condition: str
    since_ms: int
    try_count: int
    reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, container_id: _Optional[int] = ..., condition: _Optional[str] = ..., since_ms: _Optional[int] = ..., try_count: _Optional[int] = ..., reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class ContainerInfoReplica(_message.Message):
    __slots__ = ("datanode", "node_health", "replica", "reported_at_ms")
    DATANODE_FIELD_NUMBER: _ClassVar[int]
    NODE_HEALTH_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    REPORTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    datanode: _container_pb2.DatanodeEndpoint
    node_health: str
    replica: _container_pb2.ReplicaReport
    reported_at_ms: int
    def __init__(self, datanode: _Optional[_Union[_container_pb2.DatanodeEndpoint, _Mapping]] = ..., node_health: _Optional[str] = ..., replica: _Optional[_Union[_container_pb2.ReplicaReport, _Mapping]] = ..., reported_at_ms: _Optional[int] = ...) -> None: ...

class ListContainerInfosRequest(_message.Message):
    __slots__ = ("start_container_id", "count")
    START_CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    start_container_id: int
    count: int
    def __init__(self, start_container_id: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class ListContainerInfosResponse(_message.Message):
    __slots__ = ("containers", "next_container_id")
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    containers: _containers.RepeatedCompositeFieldContainer[ContainerInfo]
    next_container_id: int
    def __init__(self, containers: _Optional[_Iterable[_Union[ContainerInfo, _Mapping]]] = ..., next_container_id: _Optional[int] = ...) -> None: ...

class GetContainerInfoRequest(_message.Message):
    __slots__ = ("container_id",)
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    def __init__(self, container_id: _Optional[int] = ...) -> None: ...

class GetContainerInfoResponse(_message.Message):
    __slots__ = ("container",)
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    container: ContainerInfo
    def __init__(self, container: _Optional[_Union[ContainerInfo, _Mapping]] = ...) -> None: ...

class CountContainersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CountContainersResponse(_message.Message):
    __slots__ = ("all", "open", "whole", "faulty", "unhealthy", "differ", "few_replicas", "unknown", "lost", "contradict", "verdict", "reasons", "missing_blocks", "settings")
    ALL_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    FAULTY_FIELD_NUMBER: _ClassVar[int]
    UNHEALTHY_FIELD_NUMBER: _ClassVar[int]
    DIFFER_FIELD_NUMBER: _ClassVar[int]
    FEW_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    CONTRADICT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    MISSING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    all: int
    open: int
    whole: int
    faulty: int
    unhealthy: int
    differ: int
    few_replicas: int
    unknown: int
    lost: int
    contradict: int
    verdict: str
    reasons: _containers.RepeatedScalarFieldContainer[str]
    missing_blocks: int
    settings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, all: _Optional[int] = ..., open: _Optional[int] = ..., whole: _Optional[int] = ..., faulty: _Optional[int] = ..., unhealthy: _Optional[int] = ..., differ: _Optional[int] = ..., few_replicas: _Optional[int] = ..., unknown: _Optional[int] = ..., lost: _Optional[int] = ..., contradict: _Optional[int] = ..., verdict: _Optional[str] = ..., reasons: _Optional[_Iterable[str]] = ..., missing_blocks: _Optional[int] = ..., settings: _Optional[_Iterable[str]] = ...) -> None: ...

class CloseContainersRequest(_message.Message):
    __slots__ = ("container_ids", "dry_run", "worlds", "force")
    CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    WORLDS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    container_ids: _containers.RepeatedScalarFieldContainer[int]
    dry_run: bool
    worlds: _containers.RepeatedScalarFieldContainer[int]
    force: bool
    def __init__(self, container_ids: _Optional[_Iterable[int]] = ..., dry_run: bool = ..., worlds: _Optional[_Iterable[int]] = ..., force: bool = ...) -> None: ...

class ReconcileContainersRequest(_message.Message):
    __slots__ = ("container_ids", "dry_run", "worlds")
    CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    WORLDS_FIELD_NUMBER: _ClassVar[int]
    container_ids: _containers.RepeatedScalarFieldContainer[int]
    dry_run: bool
    worlds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, container_ids: _Optional[_Iterable[int]] = ..., dry_run: bool = ..., worlds: _Optional[_Iterable[int]] = ...) -> None: ...

class ContainerDecision(_message.Message):
    __slots__ = ("container_id", "code", "message", "command_ids", "orders", "copies_before", "copies_after", "world", "given_up", "given_up_count", "acknowledged_count")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_IDS_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    COPIES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    COPIES_AFTER_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_COUNT_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    code: str
    message: str
    command_ids: _containers.RepeatedScalarFieldContainer[int]
    orders: _containers.RepeatedCompositeFieldContainer[Order]
    copies_before: int
    copies_after: int
    world: int
    given_up: _containers.RepeatedCompositeFieldContainer[GivenUpCommit]
    given_up_count: int
    acknowledged_count: int
    def __init__(self, container_id: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., command_ids: _Optional[_Iterable[int]] = ..., orders: _Optional[_Iterable[_Union[Order, _Mapping]]] = ..., copies_before: _Optional[int] = ..., copies_after: _Optional[int] = ..., world: _Optional[int] = ..., given_up: _Optional[_Iterable[_Union[GivenUpCommit, _Mapping]]] = ..., given_up_count: _Optional[int] = ..., acknowledged_count: _Optional[int] = ...) -> None: ...

class GivenUpCommit(_message.Message):
    __slots__ = ("bcsid", "local_id", "key")
    BCSID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    bcsid: int
    local_id: int
    key: str
    def __init__(self, bcsid: _Optional[int] = ..., local_id: _Optional[int] = ..., key: _Optional[str] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("type", "datanode_id", "target_datanode_id", "bytes", "duration_ms", "queued_ms")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_MS_FIELD_NUMBER: _ClassVar[int]
    type: str
    datanode_id: str
    target_datanode_id: str
    bytes: int
    duration_ms: int
    queued_ms: int
    def __init__(self, type: _Optional[str] = ..., datanode_id: _Optional[str] = ..., target_datanode_id: _Optional[str] = ..., bytes: _Optional[int] = ..., duration_ms: _Optional[int] = ..., queued_ms: _Optional[int] = ...) -> None: ...

class ContainerDecisions(_message.Message):
    __slots__ = ("decisions",)
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[ContainerDecision]
    def __init__(self, decisions: _Optional[_Iterable[_Union[ContainerDecision, _Mapping]]] = ...) -> None: ...

class PlanRow(_message.Message):
    __slots__ = ("container_id", "action", "replicas", "reason", "sources", "targets", "copies", "forced", "expires_at_ms")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    action: str
    replicas: _containers.RepeatedCompositeFieldContainer[PlanReplica]
    reason: str
    sources: _containers.RepeatedScalarFieldContainer[str]
    targets: _containers.RepeatedScalarFieldContainer[str]
    copies: int
    forced: bool
    expires_at_ms: int
    def __init__(self, container_id: _Optional[int] = ..., action: _Optional[str] = ..., replicas: _Optional[_Iterable[_Union[PlanReplica, _Mapping]]] = ..., reason: _Optional[str] = ..., sources: _Optional[_Iterable[str]] = ..., targets: _Optional[_Iterable[str]] = ..., copies: _Optional[int] = ..., forced: bool = ..., expires_at_ms: _Optional[int] = ...) -> None: ...

class PlanReplica(_message.Message):
    __slots__ = ("datanode_id", "state", "root")
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    datanode_id: str
    state: _container_pb2.ReplicaState
    root: int
    def __init__(self, datanode_id: _Optional[str] = ..., state: _Optional[_Union[_container_pb2.ReplicaState, str]] = ..., root: _Optional[int] = ...) -> None: ...

class ApplyPlanRequest(_message.Message):
    __slots__ = ("snapshot_id", "run_id", "rows", "dry_run", "worlds")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    WORLDS_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    run_id: str
    rows: _containers.RepeatedCompositeFieldContainer[PlanRow]
    dry_run: bool
    worlds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, snapshot_id: _Optional[str] = ..., run_id: _Optional[str] = ..., rows: _Optional[_Iterable[_Union[PlanRow, _Mapping]]] = ..., dry_run: bool = ..., worlds: _Optional[_Iterable[int]] = ...) -> None: ...

class ExportSnapshotRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExportSnapshotResponse(_message.Message):
    __slots__ = ("snapshot_id", "path", "container_count", "replica_count")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_COUNT_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    path: str
    container_count: int
    replica_count: int
    def __init__(self, snapshot_id: _Optional[str] = ..., path: _Optional[str] = ..., container_count: _Optional[int] = ..., replica_count: _Optional[int] = ...) -> None: ...

class ListOutcomesRequest(_message.Message):
    __slots__ = ("command_ids", "count", "before_command_id")
    COMMAND_IDS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    command_ids: _containers.RepeatedScalarFieldContainer[int]
    count: int
    before_command_id: int
    def __init__(self, command_ids: _Optional[_Iterable[int]] = ..., count: _Optional[int] = ..., before_command_id: _Optional[int] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("datanode_id", "status", "reported_at_ms")
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REPORTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    datanode_id: str
    status: CommandStatus
    reported_at_ms: int
    def __init__(self, datanode_id: _Optional[str] = ..., status: _Optional[_Union[CommandStatus, _Mapping]] = ..., reported_at_ms: _Optional[int] = ...) -> None: ...

class ListOutcomesResponse(_message.Message):
    __slots__ = ("outcomes", "pending_command_ids")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    PENDING_COMMAND_IDS_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[Outcome]
    pending_command_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[Outcome, _Mapping]]] = ..., pending_command_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DeleteKeysRequest(_message.Message):
    __slots__ = ("keys", "dry_run", "worlds")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    WORLDS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    dry_run: bool
    worlds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, keys: _Optional[_Iterable[str]] = ..., dry_run: bool = ..., worlds: _Optional[_Iterable[int]] = ...) -> None: ...

class KeyDeletion(_message.Message):
    __slots__ = ("key", "code", "size", "transaction_ids", "world")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_IDS_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    key: str
    code: str
    size: int
    transaction_ids: _containers.RepeatedScalarFieldContainer[int]
    world: int
    def __init__(self, key: _Optional[str] = ..., code: _Optional[str] = ..., size: _Optional[int] = ..., transaction_ids: _Optional[_Iterable[int]] = ..., world: _Optional[int] = ...) -> None: ...

class DeleteKeysResponse(_message.Message):
    __slots__ = ("deletions",)
    DELETIONS_FIELD_NUMBER: _ClassVar[int]
    deletions: _containers.RepeatedCompositeFieldContainer[KeyDeletion]
    def __init__(self, deletions: _Optional[_Iterable[_Union[KeyDeletion, _Mapping]]] = ...) -> None: ...

class ReplicateContainersRequest(_message.Message):
    __slots__ = ("container_ids", "target_datanode_id", "dry_run", "worlds")
    CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    TARGET_DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    WORLDS_FIELD_NUMBER: _ClassVar[int]
    container_ids: _containers.RepeatedScalarFieldContainer[int]
    target_datanode_id: str
    dry_run: bool
    worlds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, container_ids: _Optional[_Iterable[int]] = ..., target_datanode_id: _Optional[str] = ..., dry_run: bool = ..., worlds: _Optional[_Iterable[int]] = ...) -> None: ...

class DeleteReplicasRequest(_message.Message):
    __slots__ = ("container_ids", "datanode_id", "dry_run", "worlds")
    CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    WORLDS_FIELD_NUMBER: _ClassVar[int]
    container_ids: _containers.RepeatedScalarFieldContainer[int]
    datanode_id: str
    dry_run: bool
    worlds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, container_ids: _Optional[_Iterable[int]] = ..., datanode_id: _Optional[str] = ..., dry_run: bool = ..., worlds: _Optional[_Iterable[int]] = ...) -> None: ...

class CommandNodesRequest(_message.Message):
    __slots__ = ("datanode_ids", "type")
    DATANODE_IDS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    datanode_ids: _containers.RepeatedScalarFieldContainer[str]
    type: str
    def __init__(self, datanode_ids: _Optional[_Iterable[str]] = ..., type: _Optional[str] = ...) -> None: ...

class NodeDecision(_message.Message):
    __slots__ = ("datanode_id", "code", "message", "command_id")
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    datanode_id: str
    code: str
    message: str
    command_id: int
    def __init__(self, datanode_id: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., command_id: _Optional[int] = ...) -> None: ...

class NodeDecisions(_message.Message):
    __slots__ = ("decisions",)
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[NodeDecision]
    def __init__(self, decisions: _Optional[_Iterable[_Union[NodeDecision, _Mapping]]] = ...) -> None: ...

class QueueInfo(_message.Message):
    __slots__ = ("datanode_id", "op_state", "replication_load", "replication_limit", "delete_load", "delete_limit", "excluded", "reported", "sent", "waiting")
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    OP_STATE_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_LOAD_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_LIMIT_FIELD_NUMBER: _ClassVar[int]
    DELETE_LOAD_FIELD_NUMBER: _ClassVar[int]
    DELETE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    datanode_id: str
    op_state: str
    replication_load: int
    replication_limit: int
    delete_load: int
    delete_limit: int
    excluded: bool
    reported: _containers.RepeatedCompositeFieldContainer[QueueCount]
    sent: _containers.RepeatedCompositeFieldContainer[QueueCount]
    waiting: _containers.RepeatedCompositeFieldContainer[QueueCount]
    def __init__(self, datanode_id: _Optional[str] = ..., op_state: _Optional[str] = ..., replication_load: _Optional[int] = ..., replication_limit: _Optional[int] = ..., delete_load: _Optional[int] = ..., delete_limit: _Optional[int] = ..., excluded: bool = ..., reported: _Optional[_Iterable[_Union[QueueCount, _Mapping]]] = ..., sent: _Optional[_Iterable[_Union[QueueCount, _Mapping]]] = ..., waiting: _Optional[_Iterable[_Union[QueueCount, _Mapping]]] = ...) -> None: ...

class GetReportRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConditionSample(_message.Message):
    __slots__ = ("condition", "count", "container_ids")
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    condition: str
    count: int
    container_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, condition: _Optional[str] = ..., count: _Optional[int] = ..., container_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GetReportResponse(_message.Message):
    __slots__ = ("generated_at_ms", "states", "conditions", "verified_at_ms", "decisions", "verify_error", "recovering_replica_count", "waits")
    class StatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class DecisionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    GENERATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_ERROR_FIELD_NUMBER: _ClassVar[int]
    RECOVERING_REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    generated_at_ms: int
    states: _containers.ScalarMap[str, int]
    conditions: _containers.RepeatedCompositeFieldContainer[ConditionSample]
    verified_at_ms: int
    decisions: _containers.ScalarMap[str, int]
    verify_error: str
    recovering_replica_count: int
    waits: _containers.RepeatedCompositeFieldContainer[ContainerWait]
    def __init__(self, generated_at_ms: _Optional[int] = ..., states: _Optional[_Mapping[str, int]] = ..., conditions: _Optional[_Iterable[_Union[ConditionSample, _Mapping]]] = ..., verified_at_ms: _Optional[int] = ..., decisions: _Optional[_Mapping[str, int]] = ..., verify_error: _Optional[str] = ..., recovering_replica_count: _Optional[int] = ..., waits: _Optional[_Iterable[_Union[ContainerWait, _Mapping]]] = ...) -> None: ...

class SetOperationalStatesRequest(_message.Message):
    __slots__ = ("datanode_ids", "op_state", "op_expiry_ms", "force", "dry_run", "skipped_checks")
    DATANODE_IDS_FIELD_NUMBER: _ClassVar[int]
    OP_STATE_FIELD_NUMBER: _ClassVar[int]
    OP_EXPIRY_MS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_CHECKS_FIELD_NUMBER: _ClassVar[int]
    datanode_ids: _containers.RepeatedScalarFieldContainer[str]
    op_state: str
    op_expiry_ms: int
    force: bool
    dry_run: bool
    skipped_checks: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, datanode_ids: _Optional[_Iterable[str]] = ..., op_state: _Optional[str] = ..., op_expiry_ms: _Optional[int] = ..., force: bool = ..., dry_run: bool = ..., skipped_checks: _Optional[_Iterable[str]] = ...) -> None: ...

class ListDecommissionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Departure(_message.Message):
    __slots__ = ("datanode_id", "op_state", "op_expiry_ms", "health", "container_count", "copying_count", "required_count", "unclosed_count", "container_ids", "safe_to_stop", "persisted", "locked_count")
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    OP_STATE_FIELD_NUMBER: _ClassVar[int]
    OP_EXPIRY_MS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_COUNT_FIELD_NUMBER: _ClassVar[int]
    COPYING_COUNT_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNCLOSED_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    SAFE_TO_STOP_FIELD_NUMBER: _ClassVar[int]
    PERSISTED_FIELD_NUMBER: _ClassVar[int]
    LOCKED_COUNT_FIELD_NUMBER: _ClassVar[int]
    datanode_id: str
    op_state: str
    op_expiry_ms: int
    health: str
    container_count: int
    copying_count: int
    required_count: int
    unclosed_count: int
    container_ids: _containers.RepeatedScalarFieldContainer[int]
    safe_to_stop: bool
    persisted: bool
    locked_count: int
    def __init__(self, datanode_id: _Optional[str] = ..., op_state: _Optional[str] = ..., op_expiry_ms: _Optional[int] = ..., health: _Optional[str] = ..., container_count: _Optional[int] = ..., copying_count: _Optional[int] = ..., required_count: _Optional[int] = ..., unclosed_count: _Optional[int] = ..., container_ids: _Optional[_Iterable[int]] = ..., safe_to_stop: bool = ..., persisted: bool = ..., locked_count: _Optional[int] = ...) -> None: ...

class ListDecommissionsResponse(_message.Message):
    __slots__ = ("departures", "leaving_locked_count", "resting_locked_count")
    DEPARTURES_FIELD_NUMBER: _ClassVar[int]
    LEAVING_LOCKED_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESTING_LOCKED_COUNT_FIELD_NUMBER: _ClassVar[int]
    departures: _containers.RepeatedCompositeFieldContainer[Departure]
    leaving_locked_count: int
    resting_locked_count: int
    def __init__(self, departures: _Optional[_Iterable[_Union[Departure, _Mapping]]] = ..., leaving_locked_count: _Optional[int] = ..., resting_locked_count: _Optional[int] = ...) -> None: ...

class CheckStopRequest(_message.Message):
    __slots__ = ("datanode_ids", "volumes", "for_good", "keep_count")
    class Volume(_message.Message):
        __slots__ = ("datanode_id", "volume_id")
        DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
        VOLUME_ID_FIELD_NUMBER: _ClassVar[int]
        datanode_id: str
        volume_id: str
        def __init__(self, datanode_id: _Optional[str] = ..., volume_id: _Optional[str] = ...) -> None: ...
    DATANODE_IDS_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    FOR_GOOD_FIELD_NUMBER: _ClassVar[int]
    KEEP_COUNT_FIELD_NUMBER: _ClassVar[int]
    datanode_ids: _containers.RepeatedScalarFieldContainer[str]
    volumes: _containers.RepeatedCompositeFieldContainer[CheckStopRequest.Volume]
    for_good: bool
    keep_count: int
    def __init__(self, datanode_ids: _Optional[_Iterable[str]] = ..., volumes: _Optional[_Iterable[_Union[CheckStopRequest.Volume, _Mapping]]] = ..., for_good: bool = ..., keep_count: _Optional[int] = ...) -> None: ...

class CheckStopResponse(_message.Message):
    __slots__ = ("answer", "reasons", "container_count", "already_unreadable_count", "unreadable_count", "unreadable_container_ids", "doubtful_count", "doubtful_container_ids", "last_copy_count", "missing_replicas", "missing_replica_count", "healths", "open_count", "writer_count", "rebuild_bytes", "wait_ms", "rebuild_ms", "datanodes_left", "free_bytes", "has_room", "lost_count", "lost_container_ids", "lost_states")
    class MissingReplicasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class HealthsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LostStatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_COUNT_FIELD_NUMBER: _ClassVar[int]
    ALREADY_UNREADABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    DOUBTFUL_COUNT_FIELD_NUMBER: _ClassVar[int]
    DOUBTFUL_CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    LAST_COPY_COUNT_FIELD_NUMBER: _ClassVar[int]
    MISSING_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MISSING_REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    HEALTHS_FIELD_NUMBER: _ClassVar[int]
    OPEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    WRITER_COUNT_FIELD_NUMBER: _ClassVar[int]
    REBUILD_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    REBUILD_MS_FIELD_NUMBER: _ClassVar[int]
    DATANODES_LEFT_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HAS_ROOM_FIELD_NUMBER: _ClassVar[int]
    LOST_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOST_CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    LOST_STATES_FIELD_NUMBER: _ClassVar[int]
    answer: str
    reasons: _containers.RepeatedScalarFieldContainer[str]
    container_count: int
    already_unreadable_count: int
    unreadable_count: int
    unreadable_container_ids: _containers.RepeatedScalarFieldContainer[int]
    doubtful_count: int
    doubtful_container_ids: _containers.RepeatedScalarFieldContainer[int]
    last_copy_count: int
    missing_replicas: _containers.ScalarMap[int, int]
    missing_replica_count: int
    healths: _containers.ScalarMap[str, int]
    open_count: int
    writer_count: int
    rebuild_bytes: int
    wait_ms: int
    rebuild_ms: int
    datanodes_left: int
    free_bytes: int
    has_room: bool
    lost_count: int
    lost_container_ids: _containers.RepeatedScalarFieldContainer[int]
    lost_states: _containers.ScalarMap[str, int]
    def __init__(self, answer: _Optional[str] = ..., reasons: _Optional[_Iterable[str]] = ..., container_count: _Optional[int] = ..., already_unreadable_count: _Optional[int] = ..., unreadable_count: _Optional[int] = ..., unreadable_container_ids: _Optional[_Iterable[int]] = ..., doubtful_count: _Optional[int] = ..., doubtful_container_ids: _Optional[_Iterable[int]] = ..., last_copy_count: _Optional[int] = ..., missing_replicas: _Optional[_Mapping[int, int]] = ..., missing_replica_count: _Optional[int] = ..., healths: _Optional[_Mapping[str, int]] = ..., open_count: _Optional[int] = ..., writer_count: _Optional[int] = ..., rebuild_bytes: _Optional[int] = ..., wait_ms: _Optional[int] = ..., rebuild_ms: _Optional[int] = ..., datanodes_left: _Optional[int] = ..., free_bytes: _Optional[int] = ..., has_room: bool = ..., lost_count: _Optional[int] = ..., lost_container_ids: _Optional[_Iterable[int]] = ..., lost_states: _Optional[_Mapping[str, int]] = ...) -> None: ...

class HoldContainersRequest(_message.Message):
    __slots__ = ("container_ids", "datanode_id", "release")
    CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    container_ids: _containers.RepeatedScalarFieldContainer[int]
    datanode_id: str
    release: bool
    def __init__(self, container_ids: _Optional[_Iterable[int]] = ..., datanode_id: _Optional[str] = ..., release: bool = ...) -> None: ...

class ListHoldsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Hold(_message.Message):
    __slots__ = ("container_id", "datanode_id", "since_ms", "reason")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    datanode_id: str
    since_ms: int
    reason: str
    def __init__(self, container_id: _Optional[int] = ..., datanode_id: _Optional[str] = ..., since_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ListHoldsResponse(_message.Message):
    __slots__ = ("holds",)
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    holds: _containers.RepeatedCompositeFieldContainer[Hold]
    def __init__(self, holds: _Optional[_Iterable[_Union[Hold, _Mapping]]] = ...) -> None: ...

class BalanceRequest(_message.Message):
    __slots__ = ("threshold_permille", "iteration_count", "dry_run", "stop")
    THRESHOLD_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    ITERATION_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    threshold_permille: int
    iteration_count: int
    dry_run: bool
    stop: bool
    def __init__(self, threshold_permille: _Optional[int] = ..., iteration_count: _Optional[int] = ..., dry_run: bool = ..., stop: bool = ...) -> None: ...

class BalanceMove(_message.Message):
    __slots__ = ("container_id", "source_datanode_id", "target_datanode_id", "bytes")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    source_datanode_id: str
    target_datanode_id: str
    bytes: int
    def __init__(self, container_id: _Optional[int] = ..., source_datanode_id: _Optional[str] = ..., target_datanode_id: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class NodeShare(_message.Message):
    __slots__ = ("datanode_id", "used_permille")
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    USED_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    datanode_id: str
    used_permille: int
    def __init__(self, datanode_id: _Optional[str] = ..., used_permille: _Optional[int] = ...) -> None: ...

class BalanceResponse(_message.Message):
    __slots__ = ("running", "iteration", "iteration_count_max", "threshold_permille", "moves", "moved_count", "moved_bytes", "message", "shares")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    ITERATION_COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    MOVED_COUNT_FIELD_NUMBER: _ClassVar[int]
    MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    running: bool
    iteration: int
    iteration_count_max: int
    threshold_permille: int
    moves: _containers.RepeatedCompositeFieldContainer[BalanceMove]
    moved_count: int
    moved_bytes: int
    message: str
    shares: _containers.RepeatedCompositeFieldContainer[NodeShare]
    def __init__(self, running: bool = ..., iteration: _Optional[int] = ..., iteration_count_max: _Optional[int] = ..., threshold_permille: _Optional[int] = ..., moves: _Optional[_Iterable[_Union[BalanceMove, _Mapping]]] = ..., moved_count: _Optional[int] = ..., moved_bytes: _Optional[int] = ..., message: _Optional[str] = ..., shares: _Optional[_Iterable[_Union[NodeShare, _Mapping]]] = ...) -> None: ...

class SafeModeRequest(_message.Message):
    __slots__ = ("leave", "enter")
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    ENTER_FIELD_NUMBER: _ClassVar[int]
    leave: bool
    enter: bool
    def __init__(self, leave: bool = ..., enter: bool = ...) -> None: ...

class SafeModeResponse(_message.Message):
    __slots__ = ("on", "reason", "missing_datanode_ids", "cold_start", "expected_count", "left_ms")
    ON_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MISSING_DATANODE_IDS_FIELD_NUMBER: _ClassVar[int]
    COLD_START_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    on: bool
    reason: str
    missing_datanode_ids: _containers.RepeatedScalarFieldContainer[str]
    cold_start: bool
    expected_count: int
    left_ms: int
    def __init__(self, on: bool = ..., reason: _Optional[str] = ..., missing_datanode_ids: _Optional[_Iterable[str]] = ..., cold_start: bool = ..., expected_count: _Optional[int] = ..., left_ms: _Optional[int] = ...) -> None: ...

class GetQueuesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetQueuesResponse(_message.Message):
    __slots__ = ("nodes", "pending_add_count", "pending_add_limit", "under_replicated_count", "over_replicated_count", "delete_transaction_count", "pending_delete_count")
    NODES_FIELD_NUMBER: _ClassVar[int]
    PENDING_ADD_COUNT_FIELD_NUMBER: _ClassVar[int]
    PENDING_ADD_LIMIT_FIELD_NUMBER: _ClassVar[int]
    UNDER_REPLICATED_COUNT_FIELD_NUMBER: _ClassVar[int]
    OVER_REPLICATED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DELETE_TRANSACTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    PENDING_DELETE_COUNT_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[QueueInfo]
    pending_add_count: int
    pending_add_limit: int
    under_replicated_count: int
    over_replicated_count: int
    delete_transaction_count: int
    pending_delete_count: int
    def __init__(self, nodes: _Optional[_Iterable[_Union[QueueInfo, _Mapping]]] = ..., pending_add_count: _Optional[int] = ..., pending_add_limit: _Optional[int] = ..., under_replicated_count: _Optional[int] = ..., over_replicated_count: _Optional[int] = ..., delete_transaction_count: _Optional[int] = ..., pending_delete_count: _Optional[int] = ...) -> None: ...

class RemoveNodesRequest(_message.Message):
    __slots__ = ("datanode_ids", "force", "dry_run")
    DATANODE_IDS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    datanode_ids: _containers.RepeatedScalarFieldContainer[str]
    force: bool
    dry_run: bool
    def __init__(self, datanode_ids: _Optional[_Iterable[str]] = ..., force: bool = ..., dry_run: bool = ...) -> None: ...

class MarkContainersLostRequest(_message.Message):
    __slots__ = ("container_ids", "dry_run", "worlds", "undo")
    CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    WORLDS_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    container_ids: _containers.RepeatedScalarFieldContainer[int]
    dry_run: bool
    worlds: _containers.RepeatedScalarFieldContainer[int]
    undo: bool
    def __init__(self, container_ids: _Optional[_Iterable[int]] = ..., dry_run: bool = ..., worlds: _Optional[_Iterable[int]] = ..., undo: bool = ...) -> None: ...

class ForgottenContainer(_message.Message):
    __slots__ = ("container_id", "code", "message", "world", "key_count", "keys")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    KEY_COUNT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    code: str
    message: str
    world: int
    key_count: int
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, container_id: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., world: _Optional[int] = ..., key_count: _Optional[int] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class MarkContainersLostResponse(_message.Message):
    __slots__ = ("containers",)
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    containers: _containers.RepeatedCompositeFieldContainer[ForgottenContainer]
    def __init__(self, containers: _Optional[_Iterable[_Union[ForgottenContainer, _Mapping]]] = ...) -> None: ...

class GetRestoreRecoveryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRestoreRecoveryResponse(_message.Message):
    __slots__ = ("restored", "taken_at_ms", "missing_datanode_ids", "container_ids")
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    TAKEN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    MISSING_DATANODE_IDS_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    restored: bool
    taken_at_ms: int
    missing_datanode_ids: _containers.RepeatedScalarFieldContainer[str]
    container_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, restored: bool = ..., taken_at_ms: _Optional[int] = ..., missing_datanode_ids: _Optional[_Iterable[str]] = ..., container_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RecoveredContainer(_message.Message):
    __slots__ = ("container_id", "scheme", "deleted_local_ids")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    DELETED_LOCAL_IDS_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    scheme: str
    deleted_local_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, container_id: _Optional[int] = ..., scheme: _Optional[str] = ..., deleted_local_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RecoverFromRestoreRequest(_message.Message):
    __slots__ = ("dry_run", "containers", "keys", "last_local_id", "finish", "force")
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LAST_LOCAL_ID_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    containers: _containers.RepeatedCompositeFieldContainer[RecoveredContainer]
    keys: _containers.RepeatedCompositeFieldContainer[KeyInfo]
    last_local_id: int
    finish: bool
    force: bool
    def __init__(self, dry_run: bool = ..., containers: _Optional[_Iterable[_Union[RecoveredContainer, _Mapping]]] = ..., keys: _Optional[_Iterable[_Union[KeyInfo, _Mapping]]] = ..., last_local_id: _Optional[int] = ..., finish: bool = ..., force: bool = ...) -> None: ...

class RecoveredKey(_message.Message):
    __slots__ = ("key", "code", "kept_as")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    KEPT_AS_FIELD_NUMBER: _ClassVar[int]
    key: str
    code: str
    kept_as: str
    def __init__(self, key: _Optional[str] = ..., code: _Optional[str] = ..., kept_as: _Optional[str] = ...) -> None: ...

class RecoverFromRestoreResponse(_message.Message):
    __slots__ = ("adopted_container_ids", "keys", "deleted_keys")
    ADOPTED_CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    DELETED_KEYS_FIELD_NUMBER: _ClassVar[int]
    adopted_container_ids: _containers.RepeatedScalarFieldContainer[int]
    keys: _containers.RepeatedCompositeFieldContainer[RecoveredKey]
    deleted_keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, adopted_container_ids: _Optional[_Iterable[int]] = ..., keys: _Optional[_Iterable[_Union[RecoveredKey, _Mapping]]] = ..., deleted_keys: _Optional[_Iterable[str]] = ...) -> None: ...

class ListContainerKeysRequest(_message.Message):
    __slots__ = ("container_ids", "at_risk", "start_after", "count")
    CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    AT_RISK_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    container_ids: _containers.RepeatedScalarFieldContainer[int]
    at_risk: bool
    start_after: str
    count: int
    def __init__(self, container_ids: _Optional[_Iterable[int]] = ..., at_risk: bool = ..., start_after: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class ContainerKey(_message.Message):
    __slots__ = ("key", "size", "container_ids")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    key: str
    size: int
    container_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, key: _Optional[str] = ..., size: _Optional[int] = ..., container_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ListContainerKeysResponse(_message.Message):
    __slots__ = ("keys", "next_start_after", "key_count", "container_count")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NEXT_START_AFTER_FIELD_NUMBER: _ClassVar[int]
    KEY_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_COUNT_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[ContainerKey]
    next_start_after: str
    key_count: int
    container_count: int
    def __init__(self, keys: _Optional[_Iterable[_Union[ContainerKey, _Mapping]]] = ..., next_start_after: _Optional[str] = ..., key_count: _Optional[int] = ..., container_count: _Optional[int] = ...) -> None: ...

class ListAnchorsRequest(_message.Message):
    __slots__ = ("datanode_id", "volume_id")
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    VOLUME_ID_FIELD_NUMBER: _ClassVar[int]
    datanode_id: str
    volume_id: str
    def __init__(self, datanode_id: _Optional[str] = ..., volume_id: _Optional[str] = ...) -> None: ...

class Anchor(_message.Message):
    __slots__ = ("at_ms", "count", "checksum")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    count: int
    checksum: bytes
    def __init__(self, at_ms: _Optional[int] = ..., count: _Optional[int] = ..., checksum: _Optional[bytes] = ...) -> None: ...

class LogAnchors(_message.Message):
    __slots__ = ("datanode_id", "volume_id", "anchors")
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    VOLUME_ID_FIELD_NUMBER: _ClassVar[int]
    ANCHORS_FIELD_NUMBER: _ClassVar[int]
    datanode_id: str
    volume_id: str
    anchors: _containers.RepeatedCompositeFieldContainer[Anchor]
    def __init__(self, datanode_id: _Optional[str] = ..., volume_id: _Optional[str] = ..., anchors: _Optional[_Iterable[_Union[Anchor, _Mapping]]] = ...) -> None: ...

class ListAnchorsResponse(_message.Message):
    __slots__ = ("logs",)
    LOGS_FIELD_NUMBER: _ClassVar[int]
    logs: _containers.RepeatedCompositeFieldContainer[LogAnchors]
    def __init__(self, logs: _Optional[_Iterable[_Union[LogAnchors, _Mapping]]] = ...) -> None: ...

class ChangeSettingsRequest(_message.Message):
    __slots__ = ("control", "works", "rack", "value", "duration_ms", "remove")
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    WORKS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    control: str
    works: _containers.RepeatedScalarFieldContainer[str]
    rack: str
    value: str
    duration_ms: int
    remove: bool
    def __init__(self, control: _Optional[str] = ..., works: _Optional[_Iterable[str]] = ..., rack: _Optional[str] = ..., value: _Optional[str] = ..., duration_ms: _Optional[int] = ..., remove: bool = ...) -> None: ...

class ListSettingsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ScmOption(_message.Message):
    __slots__ = ("name", "value", "default_value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    default_value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., default_value: _Optional[str] = ...) -> None: ...

class WorkControl(_message.Message):
    __slots__ = ("control", "work", "rack", "value", "since_ms", "until_ms", "text")
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    control: str
    work: str
    rack: str
    value: str
    since_ms: int
    until_ms: int
    text: str
    def __init__(self, control: _Optional[str] = ..., work: _Optional[str] = ..., rack: _Optional[str] = ..., value: _Optional[str] = ..., since_ms: _Optional[int] = ..., until_ms: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class SettingsResponse(_message.Message):
    __slots__ = ("settings", "options")
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[WorkControl]
    options: _containers.RepeatedCompositeFieldContainer[ScmOption]
    def __init__(self, settings: _Optional[_Iterable[_Union[WorkControl, _Mapping]]] = ..., options: _Optional[_Iterable[_Union[ScmOption, _Mapping]]] = ...) -> None: ...
