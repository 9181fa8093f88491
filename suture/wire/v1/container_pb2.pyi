from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicaState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLICA_STATE_UNSPECIFIED: _ClassVar[ReplicaState]
    OPEN: _ClassVar[ReplicaState]
    CLOSING: _ClassVar[ReplicaState]
    QUASI_CLOSED: _ClassVar[ReplicaState]
    CLOSED: _ClassVar[ReplicaState]
    UNHEALTHY: _ClassVar[ReplicaState]
    DELETED: _ClassVar[ReplicaState]
    RECOVERING: _ClassVar[ReplicaState]

class ChecksumType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHECKSUM_TYPE_UNSPECIFIED: _ClassVar[ChecksumType]
    NONE: _ClassVar[ChecksumType]
    CRC32: _ClassVar[ChecksumType]
    CRC32C: _ClassVar[ChecksumType]
    SHA256: _ClassVar[ChecksumType]
    MD5: _ClassVar[ChecksumType]

class TreeAlgorithm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TREE_ALGORITHM_UNSPECIFIED: _ClassVar[TreeAlgorithm]
    TREE_CRC32C: _ClassVar[TreeAlgorithm]
    TREE_XXH3_64: _ClassVar[TreeAlgorithm]
REPLICA_STATE_UNSPECIFIED: ReplicaState
OPEN: ReplicaState
CLOSING: ReplicaState
QUASI_CLOSED: ReplicaState
CLOSED: ReplicaState
UNHEALTHY: ReplicaState
DELETED: ReplicaState
RECOVERING: ReplicaState
CHECKSUM_TYPE_UNSPECIFIED: ChecksumType
NONE: ChecksumType
CRC32: ChecksumType
CRC32C: ChecksumType
SHA256: ChecksumType
MD5: ChecksumType
TREE_ALGORITHM_UNSPECIFIED: TreeAlgorithm
TREE_CRC32C: TreeAlgorithm
TREE_XXH3_64: TreeAlgorithm

class ChecksumData(_message.Message):
    __slots__ = ("type", "bytes_per_checksum", "checksums")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    type: ChecksumType
    bytes_per_checksum: int
    checksums: bytes
    def __init__(self, type: _Optional[_Union[ChecksumType, str]] = ..., bytes_per_checksum: _Optional[int] = ..., checksums: _Optional[bytes] = ...) -> None: ...

class BlockId(_message.Message):
    __slots__ = ("container_id", "local_id", "bcsid", "replica_index")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_ID_FIELD_NUMBER: _ClassVar[int]
    BCSID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_INDEX_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    local_id: int
    bcsid: int
    replica_index: int
    def __init__(self, container_id: _Optional[int] = ..., local_id: _Optional[int] = ..., bcsid: _Optional[int] = ..., replica_index: _Optional[int] = ...) -> None: ...

class ChunkInfo(_message.Message):
    __slots__ = ("offset", "length", "checksum")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    offset: int
    length: int
    checksum: ChecksumData
    def __init__(self, offset: _Optional[int] = ..., length: _Optional[int] = ..., checksum: _Optional[_Union[ChecksumData, _Mapping]] = ...) -> None: ...

class KeyValue(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class BlockData(_message.Message):
    __slots__ = ("block_id", "metadata", "chunks", "size")
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    block_id: BlockId
    metadata: _containers.RepeatedCompositeFieldContainer[KeyValue]
    chunks: _containers.RepeatedCompositeFieldContainer[ChunkInfo]
    size: int
    def __init__(self, block_id: _Optional[_Union[BlockId, _Mapping]] = ..., metadata: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ..., chunks: _Optional[_Iterable[_Union[ChunkInfo, _Mapping]]] = ..., size: _Optional[int] = ...) -> None: ...

class TreeSummary(_message.Message):
    __slots__ = ("algorithm", "root", "generation", "block_count", "tombstone_count", "tombstones_checksum")
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONES_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    algorithm: TreeAlgorithm
    root: int
    generation: int
    block_count: int
    tombstone_count: int
    tombstones_checksum: int
    def __init__(self, algorithm: _Optional[_Union[TreeAlgorithm, str]] = ..., root: _Optional[int] = ..., generation: _Optional[int] = ..., block_count: _Optional[int] = ..., tombstone_count: _Optional[int] = ..., tombstones_checksum: _Optional[int] = ...) -> None: ...

class ReplicaReport(_message.Message):
    __slots__ = ("container_id", "state", "used_bytes", "block_count", "bcsid", "origin_datanode_id", "replica_index", "is_empty", "tree", "volume_id", "data_scan_at_ms", "finding_count", "load_error", "contradiction_count")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    BCSID_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_INDEX_FIELD_NUMBER: _ClassVar[int]
    IS_EMPTY_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    VOLUME_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_SCAN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    FINDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOAD_ERROR_FIELD_NUMBER: _ClassVar[int]
    CONTRADICTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    state: ReplicaState
    used_bytes: int
    block_count: int
    bcsid: int
    origin_datanode_id: str
    replica_index: int
    is_empty: bool
    tree: TreeSummary
    volume_id: str
    data_scan_at_ms: int
    finding_count: int
    load_error: str
    contradiction_count: int
    def __init__(self, container_id: _Optional[int] = ..., state: _Optional[_Union[ReplicaState, str]] = ..., used_bytes: _Optional[int] = ..., block_count: _Optional[int] = ..., bcsid: _Optional[int] = ..., origin_datanode_id: _Optional[str] = ..., replica_index: _Optional[int] = ..., is_empty: bool = ..., tree: _Optional[_Union[TreeSummary, _Mapping]] = ..., volume_id: _Optional[str] = ..., data_scan_at_ms: _Optional[int] = ..., finding_count: _Optional[int] = ..., load_error: _Optional[str] = ..., contradiction_count: _Optional[int] = ...) -> None: ...

class ListAuditRequest(_message.Message):
    __slots__ = ("since_ms", "object")
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    since_ms: int
    object: str
    def __init__(self, since_ms: _Optional[int] = ..., object: _Optional[str] = ...) -> None: ...

class ListAuditResponse(_message.Message):
    __slots__ = ("lines", "left_out_count")
    LINES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_COUNT_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedScalarFieldContainer[str]
    left_out_count: int
    def __init__(self, lines: _Optional[_Iterable[str]] = ..., left_out_count: _Optional[int] = ...) -> None: ...

class DatanodeEndpoint(_message.Message):
    __slots__ = ("datanode_id", "address")
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    datanode_id: str
    address: str
    def __init__(self, datanode_id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...
