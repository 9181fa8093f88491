from suture.wire.v1 import container_pb2 as _container_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HashesLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HASHES_LEVEL_UNSPECIFIED: _ClassVar[HashesLevel]
    ROOT: _ClassVar[HashesLevel]
    RANGES: _ClassVar[HashesLevel]
    BLOCKS: _ClassVar[HashesLevel]
    CHUNKS: _ClassVar[HashesLevel]
HASHES_LEVEL_UNSPECIFIED: HashesLevel
ROOT: HashesLevel
RANGES: HashesLevel
BLOCKS: HashesLevel
CHUNKS: HashesLevel

class CreateContainerRequest(_message.Message):
    __slots__ = ("container_id", "replica_index", "state")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_INDEX_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    replica_index: int
    state: _container_pb2.ReplicaState
    def __init__(self, container_id: _Optional[int] = ..., replica_index: _Optional[int] = ..., state: _Optional[_Union[_container_pb2.ReplicaState, str]] = ...) -> None: ...

class CreateContainerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WriteChunkRequest(_message.Message):
    __slots__ = ("block_id", "chunk", "data", "commit")
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    block_id: _container_pb2.BlockId
    chunk: _container_pb2.ChunkInfo
    data: bytes
    commit: _container_pb2.BlockData
    def __init__(self, block_id: _Optional[_Union[_container_pb2.BlockId, _Mapping]] = ..., chunk: _Optional[_Union[_container_pb2.ChunkInfo, _Mapping]] = ..., data: _Optional[bytes] = ..., commit: _Optional[_Union[_container_pb2.BlockData, _Mapping]] = ...) -> None: ...

class WriteChunkResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PutBlockRequest(_message.Message):
    __slots__ = ("block",)
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    block: _container_pb2.BlockData
    def __init__(self, block: _Optional[_Union[_container_pb2.BlockData, _Mapping]] = ...) -> None: ...

class PutBlockResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NewBlocks(_message.Message):
    __slots__ = ("data", "blocks")
    DATA_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    blocks: _containers.RepeatedCompositeFieldContainer[NewBlock]
    def __init__(self, data: _Optional[bytes] = ..., blocks: _Optional[_Iterable[_Union[NewBlock, _Mapping]]] = ...) -> None: ...

class NewBlock(_message.Message):
    __slots__ = ("block_id", "chunks", "is_whole", "metadata")
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    block_id: _container_pb2.BlockId
    chunks: _containers.RepeatedCompositeFieldContainer[_container_pb2.ChunkInfo]
    is_whole: bool
    metadata: _containers.RepeatedCompositeFieldContainer[_container_pb2.KeyValue]
    def __init__(self, block_id: _Optional[_Union[_container_pb2.BlockId, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[_container_pb2.ChunkInfo, _Mapping]]] = ..., is_whole: bool = ..., metadata: _Optional[_Iterable[_Union[_container_pb2.KeyValue, _Mapping]]] = ...) -> None: ...

class WriteBlocksResponse(_message.Message):
    __slots__ = ("block_count",)
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    block_count: int
    def __init__(self, block_count: _Optional[int] = ...) -> None: ...

class CloseContainerRequest(_message.Message):
    __slots__ = ("container_id", "bcsid", "force")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    BCSID_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    bcsid: int
    force: bool
    def __init__(self, container_id: _Optional[int] = ..., bcsid: _Optional[int] = ..., force: bool = ...) -> None: ...

class CloseContainerResponse(_message.Message):
    __slots__ = ("replica",)
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    replica: _container_pb2.ReplicaReport
    def __init__(self, replica: _Optional[_Union[_container_pb2.ReplicaReport, _Mapping]] = ...) -> None: ...

class DeleteContainerRequest(_message.Message):
    __slots__ = ("container_id", "force")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    force: bool
    def __init__(self, container_id: _Optional[int] = ..., force: bool = ...) -> None: ...

class DeleteContainerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetContainerRequest(_message.Message):
    __slots__ = ("container_id",)
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    def __init__(self, container_id: _Optional[int] = ...) -> None: ...

class GetContainerResponse(_message.Message):
    __slots__ = ("replica",)
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    replica: _container_pb2.ReplicaReport
    def __init__(self, replica: _Optional[_Union[_container_pb2.ReplicaReport, _Mapping]] = ...) -> None: ...

class ListContainersRequest(_message.Message):
    __slots__ = ("start_container_id",)
    START_CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    start_container_id: int
    def __init__(self, start_container_id: _Optional[int] = ...) -> None: ...

class ListContainersResponse(_message.Message):
    __slots__ = ("replicas", "next_container_id")
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[_container_pb2.ReplicaReport]
    next_container_id: int
    def __init__(self, replicas: _Optional[_Iterable[_Union[_container_pb2.ReplicaReport, _Mapping]]] = ..., next_container_id: _Optional[int] = ...) -> None: ...

class GetBlocksRequest(_message.Message):
    __slots__ = ("block_ids",)
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    block_ids: _containers.RepeatedCompositeFieldContainer[_container_pb2.BlockId]
    def __init__(self, block_ids: _Optional[_Iterable[_Union[_container_pb2.BlockId, _Mapping]]] = ...) -> None: ...

class GetBlocksResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[BlockResult]
    def __init__(self, results: _Optional[_Iterable[_Union[BlockResult, _Mapping]]] = ...) -> None: ...

class BlockResult(_message.Message):
    __slots__ = ("block", "code", "message")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    block: _container_pb2.BlockData
    code: str
    message: str
    def __init__(self, block: _Optional[_Union[_container_pb2.BlockData, _Mapping]] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ListBlocksRequest(_message.Message):
    __slots__ = ("container_id", "start_local_id")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    START_LOCAL_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    start_local_id: int
    def __init__(self, container_id: _Optional[int] = ..., start_local_id: _Optional[int] = ...) -> None: ...

class ListBlocksResponse(_message.Message):
    __slots__ = ("blocks", "next_local_id")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_LOCAL_ID_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[_container_pb2.BlockData]
    next_local_id: int
    def __init__(self, blocks: _Optional[_Iterable[_Union[_container_pb2.BlockData, _Mapping]]] = ..., next_local_id: _Optional[int] = ...) -> None: ...

class ReadChunkRequest(_message.Message):
    __slots__ = ("block_id", "offset")
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    block_id: _container_pb2.BlockId
    offset: int
    def __init__(self, block_id: _Optional[_Union[_container_pb2.BlockId, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class ReadChunkResponse(_message.Message):
    __slots__ = ("chunk", "data")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    chunk: _container_pb2.ChunkInfo
    data: bytes
    def __init__(self, chunk: _Optional[_Union[_container_pb2.ChunkInfo, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReadChunksRequest(_message.Message):
    __slots__ = ("container_id", "chunks")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    chunks: _containers.RepeatedCompositeFieldContainer[ChunkKey]
    def __init__(self, container_id: _Optional[int] = ..., chunks: _Optional[_Iterable[_Union[ChunkKey, _Mapping]]] = ...) -> None: ...

class ChunkKey(_message.Message):
    __slots__ = ("local_id", "offset")
    LOCAL_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    local_id: int
    offset: int
    def __init__(self, local_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class ReadChunksResponse(_message.Message):
    __slots__ = ("chunks",)
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[ServedChunk]
    def __init__(self, chunks: _Optional[_Iterable[_Union[ServedChunk, _Mapping]]] = ...) -> None: ...

class ServedChunk(_message.Message):
    __slots__ = ("local_id", "chunk", "data")
    LOCAL_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    local_id: int
    chunk: _container_pb2.ChunkInfo
    data: bytes
    def __init__(self, local_id: _Optional[int] = ..., chunk: _Optional[_Union[_container_pb2.ChunkInfo, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReadBlockRequest(_message.Message):
    __slots__ = ("block_id", "offset")
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    block_id: _container_pb2.BlockId
    offset: int
    def __init__(self, block_id: _Optional[_Union[_container_pb2.BlockId, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class ReadBlockResponse(_message.Message):
    __slots__ = ("chunk", "data")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    chunk: _container_pb2.ChunkInfo
    data: bytes
    def __init__(self, chunk: _Optional[_Union[_container_pb2.ChunkInfo, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class GetSmallFileResponse(_message.Message):
    __slots__ = ("chunks", "data")
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[_container_pb2.ChunkInfo]
    data: bytes
    def __init__(self, chunks: _Optional[_Iterable[_Union[_container_pb2.ChunkInfo, _Mapping]]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ProveChunksRequest(_message.Message):
    __slots__ = ("container_id", "chunks")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    chunks: _containers.RepeatedCompositeFieldContainer[ChunkChallenge]
    def __init__(self, container_id: _Optional[int] = ..., chunks: _Optional[_Iterable[_Union[ChunkChallenge, _Mapping]]] = ...) -> None: ...

class ChunkChallenge(_message.Message):
    __slots__ = ("local_id", "offset", "nonce")
    LOCAL_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    local_id: int
    offset: int
    nonce: bytes
    def __init__(self, local_id: _Optional[int] = ..., offset: _Optional[int] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class ProveChunksResponse(_message.Message):
    __slots__ = ("proofs",)
    PROOFS_FIELD_NUMBER: _ClassVar[int]
    proofs: _containers.RepeatedCompositeFieldContainer[ChunkProof]
    def __init__(self, proofs: _Optional[_Iterable[_Union[ChunkProof, _Mapping]]] = ...) -> None: ...

class ChunkProof(_message.Message):
    __slots__ = ("answer", "code", "message")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    answer: bytes
    code: str
    message: str
    def __init__(self, answer: _Optional[bytes] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ProveReplicaRequest(_message.Message):
    __slots__ = ("container_id", "nonce", "age_max_ms", "keep_ms")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    AGE_MAX_MS_FIELD_NUMBER: _ClassVar[int]
    KEEP_MS_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    nonce: bytes
    age_max_ms: int
    keep_ms: int
    def __init__(self, container_id: _Optional[int] = ..., nonce: _Optional[bytes] = ..., age_max_ms: _Optional[int] = ..., keep_ms: _Optional[int] = ...) -> None: ...

class ProveReplicaResponse(_message.Message):
    __slots__ = ("proof",)
    PROOF_FIELD_NUMBER: _ClassVar[int]
    proof: ReplicaProof
    def __init__(self, proof: _Optional[_Union[ReplicaProof, _Mapping]] = ...) -> None: ...

class ReplicaProof(_message.Message):
    __slots__ = ("tree", "answer")
    TREE_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    tree: _container_pb2.TreeSummary
    answer: bytes
    def __init__(self, tree: _Optional[_Union[_container_pb2.TreeSummary, _Mapping]] = ..., answer: _Optional[bytes] = ...) -> None: ...

class BlockRange(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class GetContainerHashesRequest(_message.Message):
    __slots__ = ("container_id", "level", "block_ids", "ranges", "range_starts")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    RANGE_STARTS_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    level: HashesLevel
    block_ids: _containers.RepeatedScalarFieldContainer[int]
    ranges: _containers.RepeatedCompositeFieldContainer[BlockRange]
    range_starts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, container_id: _Optional[int] = ..., level: _Optional[_Union[HashesLevel, str]] = ..., block_ids: _Optional[_Iterable[int]] = ..., ranges: _Optional[_Iterable[_Union[BlockRange, _Mapping]]] = ..., range_starts: _Optional[_Iterable[int]] = ...) -> None: ...

class HashesPage(_message.Message):
    __slots__ = ("summary", "range_checksums", "block_ids", "block_checksums", "block_deleted", "block_chunk_counts", "chunk_offsets", "chunk_lengths", "chunk_checksums", "chunk_healthy")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    RANGE_CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_DELETED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_CHUNK_COUNTS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_HEALTHY_FIELD_NUMBER: _ClassVar[int]
    summary: _container_pb2.TreeSummary
    range_checksums: _containers.RepeatedScalarFieldContainer[int]
    block_ids: _containers.RepeatedScalarFieldContainer[int]
    block_checksums: _containers.RepeatedScalarFieldContainer[int]
    block_deleted: _containers.RepeatedScalarFieldContainer[bool]
    block_chunk_counts: _containers.RepeatedScalarFieldContainer[int]
    chunk_offsets: _containers.RepeatedScalarFieldContainer[int]
    chunk_lengths: _containers.RepeatedScalarFieldContainer[int]
    chunk_checksums: _containers.RepeatedScalarFieldContainer[int]
    chunk_healthy: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, summary: _Optional[_Union[_container_pb2.TreeSummary, _Mapping]] = ..., range_checksums: _Optional[_Iterable[int]] = ..., block_ids: _Optional[_Iterable[int]] = ..., block_checksums: _Optional[_Iterable[int]] = ..., block_deleted: _Optional[_Iterable[bool]] = ..., block_chunk_counts: _Optional[_Iterable[int]] = ..., chunk_offsets: _Optional[_Iterable[int]] = ..., chunk_lengths: _Optional[_Iterable[int]] = ..., chunk_checksums: _Optional[_Iterable[int]] = ..., chunk_healthy: _Optional[_Iterable[bool]] = ...) -> None: ...

class ImportPart(_message.Message):
    __slots__ = ("header", "tree", "findings", "blocks", "end")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    header: ImportHeader
    tree: HashesPage
    findings: ImportFindings
    blocks: ImportBlocks
    end: ImportEnd
    def __init__(self, header: _Optional[_Union[ImportHeader, _Mapping]] = ..., tree: _Optional[_Union[HashesPage, _Mapping]] = ..., findings: _Optional[_Union[ImportFindings, _Mapping]] = ..., blocks: _Optional[_Union[ImportBlocks, _Mapping]] = ..., end: _Optional[_Union[ImportEnd, _Mapping]] = ...) -> None: ...

class ImportHeader(_message.Message):
    __slots__ = ("cluster_id", "source_datanode_id", "container_id", "state", "former_state", "replica_index", "bcsid", "origin_datanode_id", "data_bytes")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FORMER_STATE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_INDEX_FIELD_NUMBER: _ClassVar[int]
    BCSID_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    source_datanode_id: str
    container_id: int
    state: _container_pb2.ReplicaState
    former_state: _container_pb2.ReplicaState
    replica_index: int
    bcsid: int
    origin_datanode_id: str
    data_bytes: int
    def __init__(self, cluster_id: _Optional[str] = ..., source_datanode_id: _Optional[str] = ..., container_id: _Optional[int] = ..., state: _Optional[_Union[_container_pb2.ReplicaState, str]] = ..., former_state: _Optional[_Union[_container_pb2.ReplicaState, str]] = ..., replica_index: _Optional[int] = ..., bcsid: _Optional[int] = ..., origin_datanode_id: _Optional[str] = ..., data_bytes: _Optional[int] = ...) -> None: ...

class ImportFindings(_message.Message):
    __slots__ = ("findings",)
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    def __init__(self, findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ...) -> None: ...

class ImportBlocks(_message.Message):
    __slots__ = ("local_ids", "rows", "file_bytes", "data", "padding")
    LOCAL_IDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    local_ids: _containers.RepeatedScalarFieldContainer[int]
    rows: _containers.RepeatedScalarFieldContainer[bytes]
    file_bytes: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    padding: bytes
    def __init__(self, local_ids: _Optional[_Iterable[int]] = ..., rows: _Optional[_Iterable[bytes]] = ..., file_bytes: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., padding: _Optional[bytes] = ...) -> None: ...

class ImportEnd(_message.Message):
    __slots__ = ("block_count", "data_bytes")
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    block_count: int
    data_bytes: int
    def __init__(self, block_count: _Optional[int] = ..., data_bytes: _Optional[int] = ...) -> None: ...

class ImportContainerResponse(_message.Message):
    __slots__ = ("replica", "damaged_chunk_count")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_CHUNK_COUNT_FIELD_NUMBER: _ClassVar[int]
    replica: _container_pb2.ReplicaReport
    damaged_chunk_count: int
    def __init__(self, replica: _Optional[_Union[_container_pb2.ReplicaReport, _Mapping]] = ..., damaged_chunk_count: _Optional[int] = ...) -> None: ...

class ScanContainerRequest(_message.Message):
    __slots__ = ("container_id", "queue", "full_speed")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FULL_SPEED_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    queue: bool
    full_speed: bool
    def __init__(self, container_id: _Optional[int] = ..., queue: bool = ..., full_speed: bool = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("container_id", "verdict", "fault", "local_id", "offset", "length", "found_at_ms", "evidence", "forensic")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    LOCAL_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    FOUND_AT_MS_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    FORENSIC_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    verdict: str
    fault: str
    local_id: int
    offset: int
    length: int
    found_at_ms: int
    evidence: str
    forensic: str
    def __init__(self, container_id: _Optional[int] = ..., verdict: _Optional[str] = ..., fault: _Optional[str] = ..., local_id: _Optional[int] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., found_at_ms: _Optional[int] = ..., evidence: _Optional[str] = ..., forensic: _Optional[str] = ...) -> None: ...

class ScanResult(_message.Message):
    __slots__ = ("replica", "findings", "finding_count", "bytes_read")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    FINDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    replica: _container_pb2.ReplicaReport
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    finding_count: int
    bytes_read: int
    def __init__(self, replica: _Optional[_Union[_container_pb2.ReplicaReport, _Mapping]] = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., finding_count: _Optional[int] = ..., bytes_read: _Optional[int] = ...) -> None: ...

class ScanProgress(_message.Message):
    __slots__ = ("bytes_read", "bytes_total", "result", "queued", "waiting")
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    bytes_read: int
    bytes_total: int
    result: ScanResult
    queued: bool
    waiting: bool
    def __init__(self, bytes_read: _Optional[int] = ..., bytes_total: _Optional[int] = ..., result: _Optional[_Union[ScanResult, _Mapping]] = ..., queued: bool = ..., waiting: bool = ...) -> None: ...

class SampleChunksRequest(_message.Message):
    __slots__ = ("chunk_count", "drawn_count", "seed")
    CHUNK_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRAWN_COUNT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    chunk_count: int
    drawn_count: int
    seed: int
    def __init__(self, chunk_count: _Optional[int] = ..., drawn_count: _Optional[int] = ..., seed: _Optional[int] = ...) -> None: ...

class SampleResult(_message.Message):
    __slots__ = ("chunk_count", "read_count", "bytes_read", "bad_count", "undecided_count", "gone_count", "without_checksum_count", "damaged_row_count", "unread_count", "unread", "bad")
    CHUNK_COUNT_FIELD_NUMBER: _ClassVar[int]
    READ_COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    BAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNDECIDED_COUNT_FIELD_NUMBER: _ClassVar[int]
    GONE_COUNT_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_CHECKSUM_COUNT_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNREAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    BAD_FIELD_NUMBER: _ClassVar[int]
    chunk_count: int
    read_count: int
    bytes_read: int
    bad_count: int
    undecided_count: int
    gone_count: int
    without_checksum_count: int
    damaged_row_count: int
    unread_count: int
    unread: _containers.RepeatedScalarFieldContainer[str]
    bad: _containers.RepeatedCompositeFieldContainer[Finding]
    def __init__(self, chunk_count: _Optional[int] = ..., read_count: _Optional[int] = ..., bytes_read: _Optional[int] = ..., bad_count: _Optional[int] = ..., undecided_count: _Optional[int] = ..., gone_count: _Optional[int] = ..., without_checksum_count: _Optional[int] = ..., damaged_row_count: _Optional[int] = ..., unread_count: _Optional[int] = ..., unread: _Optional[_Iterable[str]] = ..., bad: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ...) -> None: ...

class SampleProgress(_message.Message):
    __slots__ = ("read_count", "result")
    READ_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    read_count: int
    result: SampleResult
    def __init__(self, read_count: _Optional[int] = ..., result: _Optional[_Union[SampleResult, _Mapping]] = ...) -> None: ...

class ListFindingsRequest(_message.Message):
    __slots__ = ("container_id", "start_container_id")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    START_CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    start_container_id: int
    def __init__(self, container_id: _Optional[int] = ..., start_container_id: _Optional[int] = ...) -> None: ...

class ListFindingsResponse(_message.Message):
    __slots__ = ("findings", "next_container_id")
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    next_container_id: int
    def __init__(self, findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., next_container_id: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VolumeStatus(_message.Message):
    __slots__ = ("volume_id", "path", "capacity_bytes", "available_bytes", "used_bytes", "container_count", "failed", "oldest_scan_at_ms", "error", "data_bytes", "in_time_bytes", "service", "service_since_ms", "retiring_bytes", "eta_ms", "stuck_container_ids", "stuck_reason", "unplaceable_container_ids", "read_us", "write_us", "slow", "log_count", "log_checksum", "stuck_count", "rebuild_count", "rebuild_left_count")
    VOLUME_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    OLDEST_SCAN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    IN_TIME_BYTES_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    SERVICE_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    RETIRING_BYTES_FIELD_NUMBER: _ClassVar[int]
    ETA_MS_FIELD_NUMBER: _ClassVar[int]
    STUCK_CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    STUCK_REASON_FIELD_NUMBER: _ClassVar[int]
    UNPLACEABLE_CONTAINER_IDS_FIELD_NUMBER: _ClassVar[int]
    READ_US_FIELD_NUMBER: _ClassVar[int]
    WRITE_US_FIELD_NUMBER: _ClassVar[int]
    SLOW_FIELD_NUMBER: _ClassVar[int]
    LOG_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOG_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    STUCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    REBUILD_COUNT_FIELD_NUMBER: _ClassVar[int]
    REBUILD_LEFT_COUNT_FIELD_NUMBER: _ClassVar[int]
    volume_id: str
    path: str
    capacity_bytes: int
    available_bytes: int
    used_bytes: int
    container_count: int
    failed: bool
    oldest_scan_at_ms: int
    error: str
    data_bytes: int
    in_time_bytes: int
    service: str
    service_since_ms: int
    retiring_bytes: int
    eta_ms: int
    stuck_container_ids: _containers.RepeatedScalarFieldContainer[int]
    stuck_reason: str
    unplaceable_container_ids: _containers.RepeatedScalarFieldContainer[int]
    read_us: int
    write_us: int
    slow: str
    log_count: int
    log_checksum: bytes
    stuck_count: int
    rebuild_count: int
    rebuild_left_count: int
    def __init__(self, volume_id: _Optional[str] = ..., path: _Optional[str] = ..., capacity_bytes: _Optional[int] = ..., available_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., container_count: _Optional[int] = ..., failed: bool = ..., oldest_scan_at_ms: _Optional[int] = ..., error: _Optional[str] = ..., data_bytes: _Optional[int] = ..., in_time_bytes: _Optional[int] = ..., service: _Optional[str] = ..., service_since_ms: _Optional[int] = ..., retiring_bytes: _Optional[int] = ..., eta_ms: _Optional[int] = ..., stuck_container_ids: _Optional[_Iterable[int]] = ..., stuck_reason: _Optional[str] = ..., unplaceable_container_ids: _Optional[_Iterable[int]] = ..., read_us: _Optional[int] = ..., write_us: _Optional[int] = ..., slow: _Optional[str] = ..., log_count: _Optional[int] = ..., log_checksum: _Optional[bytes] = ..., stuck_count: _Optional[int] = ..., rebuild_count: _Optional[int] = ..., rebuild_left_count: _Optional[int] = ...) -> None: ...

class ListDisksRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DiskReport(_message.Message):
    __slots__ = ("volume_id", "path", "disk", "smart", "smart_error", "kernel_lines", "kernel_error")
    VOLUME_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    SMART_FIELD_NUMBER: _ClassVar[int]
    SMART_ERROR_FIELD_NUMBER: _ClassVar[int]
    KERNEL_LINES_FIELD_NUMBER: _ClassVar[int]
    KERNEL_ERROR_FIELD_NUMBER: _ClassVar[int]
    volume_id: str
    path: str
    disk: str
    smart: str
    smart_error: str
    kernel_lines: _containers.RepeatedScalarFieldContainer[str]
    kernel_error: str
    def __init__(self, volume_id: _Optional[str] = ..., path: _Optional[str] = ..., disk: _Optional[str] = ..., smart: _Optional[str] = ..., smart_error: _Optional[str] = ..., kernel_lines: _Optional[_Iterable[str]] = ..., kernel_error: _Optional[str] = ...) -> None: ...

class ListDisksResponse(_message.Message):
    __slots__ = ("disks",)
    DISKS_FIELD_NUMBER: _ClassVar[int]
    disks: _containers.RepeatedCompositeFieldContainer[DiskReport]
    def __init__(self, disks: _Optional[_Iterable[_Union[DiskReport, _Mapping]]] = ...) -> None: ...

class ControlVolumeRequest(_message.Message):
    __slots__ = ("volume_id", "service", "add_path", "target_volume_id")
    VOLUME_ID_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    ADD_PATH_FIELD_NUMBER: _ClassVar[int]
    TARGET_VOLUME_ID_FIELD_NUMBER: _ClassVar[int]
    volume_id: str
    service: str
    add_path: str
    target_volume_id: str
    def __init__(self, volume_id: _Optional[str] = ..., service: _Optional[str] = ..., add_path: _Optional[str] = ..., target_volume_id: _Optional[str] = ...) -> None: ...

class ControlVolumeResponse(_message.Message):
    __slots__ = ("volumes",)
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    volumes: _containers.RepeatedCompositeFieldContainer[VolumeStatus]
    def __init__(self, volumes: _Optional[_Iterable[_Union[VolumeStatus, _Mapping]]] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("name", "state", "steps", "error_count", "last_error", "quiet_ms", "stalled")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ERROR_COUNT_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    QUIET_MS_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    steps: int
    error_count: int
    last_error: str
    quiet_ms: int
    stalled: bool
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., steps: _Optional[int] = ..., error_count: _Optional[int] = ..., last_error: _Optional[str] = ..., quiet_ms: _Optional[int] = ..., stalled: bool = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("datanode_id", "cluster_id", "version", "started_at_ms", "volumes", "containers_by_state", "finding_count", "workers", "task_count", "scm_state", "interval_ms", "damaged_count", "damaged", "contradictory_count", "clock_offset_ms")
    class ContainersByStateEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_BY_STATE_FIELD_NUMBER: _ClassVar[int]
    FINDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    TASK_COUNT_FIELD_NUMBER: _ClassVar[int]
    SCM_STATE_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    CONTRADICTORY_COUNT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_MS_FIELD_NUMBER: _ClassVar[int]
    datanode_id: str
    cluster_id: str
    version: str
    started_at_ms: int
    volumes: _containers.RepeatedCompositeFieldContainer[VolumeStatus]
    containers_by_state: _containers.ScalarMap[str, int]
    finding_count: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    task_count: int
    scm_state: str
    interval_ms: int
    damaged_count: int
    damaged: _containers.RepeatedScalarFieldContainer[int]
    contradictory_count: int
    clock_offset_ms: int
    def __init__(self, datanode_id: _Optional[str] = ..., cluster_id: _Optional[str] = ..., version: _Optional[str] = ..., started_at_ms: _Optional[int] = ..., volumes: _Optional[_Iterable[_Union[VolumeStatus, _Mapping]]] = ..., containers_by_state: _Optional[_Mapping[str, int]] = ..., finding_count: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., task_count: _Optional[int] = ..., scm_state: _Optional[str] = ..., interval_ms: _Optional[int] = ..., damaged_count: _Optional[int] = ..., damaged: _Optional[_Iterable[int]] = ..., contradictory_count: _Optional[int] = ..., clock_offset_ms: _Optional[int] = ...) -> None: ...

class ScrubStatusRequest(_message.Message):
    __slots__ = ("with_last_pass",)
    WITH_LAST_PASS_FIELD_NUMBER: _ClassVar[int]
    with_last_pass: bool
    def __init__(self, with_last_pass: bool = ...) -> None: ...

class ControlScrubRequest(_message.Message):
    __slots__ = ("volume_id", "pause_ms", "resume", "skip_container_id")
    VOLUME_ID_FIELD_NUMBER: _ClassVar[int]
    PAUSE_MS_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    SKIP_CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    volume_id: str
    pause_ms: int
    resume: bool
    skip_container_id: int
    def __init__(self, volume_id: _Optional[str] = ..., pause_ms: _Optional[int] = ..., resume: bool = ..., skip_container_id: _Optional[int] = ...) -> None: ...

class VolumeScrub(_message.Message):
    __slots__ = ("volume_id", "path", "state", "container_id", "container_bytes_read", "container_bytes", "scanned_bytes", "speed_bytes_per_s", "rate_bytes_per_s", "needed_bytes_per_s", "due_count", "due_bytes", "used_bytes", "never_read_count", "oldest_read_at_ms", "lag_ms", "eta_ms", "pause_left_ms", "promise", "interval_possible", "canary_found_at_ms", "canary_overdue", "check", "last_pass")
    VOLUME_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCANNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPEED_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    RATE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    NEEDED_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    DUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    NEVER_READ_COUNT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_READ_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    ETA_MS_FIELD_NUMBER: _ClassVar[int]
    PAUSE_LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_POSSIBLE_FIELD_NUMBER: _ClassVar[int]
    CANARY_FOUND_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CANARY_OVERDUE_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    LAST_PASS_FIELD_NUMBER: _ClassVar[int]
    volume_id: str
    path: str
    state: str
    container_id: int
    container_bytes_read: int
    container_bytes: int
    scanned_bytes: int
    speed_bytes_per_s: int
    rate_bytes_per_s: int
    needed_bytes_per_s: int
    due_count: int
    due_bytes: int
    used_bytes: int
    never_read_count: int
    oldest_read_at_ms: int
    lag_ms: int
    eta_ms: int
    pause_left_ms: int
    promise: str
    interval_possible: bool
    canary_found_at_ms: int
    canary_overdue: bool
    check: str
    last_pass: ScrubPass
    def __init__(self, volume_id: _Optional[str] = ..., path: _Optional[str] = ..., state: _Optional[str] = ..., container_id: _Optional[int] = ..., container_bytes_read: _Optional[int] = ..., container_bytes: _Optional[int] = ..., scanned_bytes: _Optional[int] = ..., speed_bytes_per_s: _Optional[int] = ..., rate_bytes_per_s: _Optional[int] = ..., needed_bytes_per_s: _Optional[int] = ..., due_count: _Optional[int] = ..., due_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., never_read_count: _Optional[int] = ..., oldest_read_at_ms: _Optional[int] = ..., lag_ms: _Optional[int] = ..., eta_ms: _Optional[int] = ..., pause_left_ms: _Optional[int] = ..., promise: _Optional[str] = ..., interval_possible: bool = ..., canary_found_at_ms: _Optional[int] = ..., canary_overdue: bool = ..., check: _Optional[str] = ..., last_pass: _Optional[_Union[ScrubPass, _Mapping]] = ...) -> None: ...

class ScrubPass(_message.Message):
    __slots__ = ("began_at_ms", "ended_at_ms", "read_bytes", "found_count", "resolved_count")
    BEGAN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOUND_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_COUNT_FIELD_NUMBER: _ClassVar[int]
    began_at_ms: int
    ended_at_ms: int
    read_bytes: int
    found_count: int
    resolved_count: int
    def __init__(self, began_at_ms: _Optional[int] = ..., ended_at_ms: _Optional[int] = ..., read_bytes: _Optional[int] = ..., found_count: _Optional[int] = ..., resolved_count: _Optional[int] = ...) -> None: ...

class ScrubStatusResponse(_message.Message):
    __slots__ = ("volumes", "interval_ms", "on_demand_waiting", "metadata_scanned_at_ms", "metadata_fault_count", "parity", "challenges", "shadow_hashing")
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_WAITING_FIELD_NUMBER: _ClassVar[int]
    METADATA_SCANNED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FAULT_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARITY_FIELD_NUMBER: _ClassVar[int]
    CHALLENGES_FIELD_NUMBER: _ClassVar[int]
    SHADOW_HASHING_FIELD_NUMBER: _ClassVar[int]
    volumes: _containers.RepeatedCompositeFieldContainer[VolumeScrub]
    interval_ms: int
    on_demand_waiting: int
    metadata_scanned_at_ms: int
    metadata_fault_count: int
    parity: ParityScrub
    challenges: Challenges
    shadow_hashing: ShadowHashing
    def __init__(self, volumes: _Optional[_Iterable[_Union[VolumeScrub, _Mapping]]] = ..., interval_ms: _Optional[int] = ..., on_demand_waiting: _Optional[int] = ..., metadata_scanned_at_ms: _Optional[int] = ..., metadata_fault_count: _Optional[int] = ..., parity: _Optional[_Union[ParityScrub, _Mapping]] = ..., challenges: _Optional[_Union[Challenges, _Mapping]] = ..., shadow_hashing: _Optional[_Union[ShadowHashing, _Mapping]] = ...) -> None: ...

class Challenges(_message.Message):
    __slots__ = ("interval_ms", "asked_at_ms", "proven_count", "failed_count", "unanswered_count", "own_count")
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PROVEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILED_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_COUNT_FIELD_NUMBER: _ClassVar[int]
    OWN_COUNT_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    asked_at_ms: int
    proven_count: int
    failed_count: int
    unanswered_count: int
    own_count: int
    def __init__(self, interval_ms: _Optional[int] = ..., asked_at_ms: _Optional[int] = ..., proven_count: _Optional[int] = ..., failed_count: _Optional[int] = ..., unanswered_count: _Optional[int] = ..., own_count: _Optional[int] = ...) -> None: ...

class ShadowHashing(_message.Message):
    __slots__ = ("running", "compared_count", "differing_count")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    COMPARED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DIFFERING_COUNT_FIELD_NUMBER: _ClassVar[int]
    running: bool
    compared_count: int
    differing_count: int
    def __init__(self, running: bool = ..., compared_count: _Optional[int] = ..., differing_count: _Optional[int] = ...) -> None: ...

class ParityScrub(_message.Message):
    __slots__ = ("interval_ms", "container_id", "verified_count", "oldest_verified_at_ms", "stripe_count", "read_bytes", "fault_count", "faults")
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_COUNT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_VERIFIED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    STRIPE_COUNT_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAULT_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    container_id: int
    verified_count: int
    oldest_verified_at_ms: int
    stripe_count: int
    read_bytes: int
    fault_count: int
    faults: _containers.RepeatedCompositeFieldContainer[ParityFault]
    def __init__(self, interval_ms: _Optional[int] = ..., container_id: _Optional[int] = ..., verified_count: _Optional[int] = ..., oldest_verified_at_ms: _Optional[int] = ..., stripe_count: _Optional[int] = ..., read_bytes: _Optional[int] = ..., fault_count: _Optional[int] = ..., faults: _Optional[_Iterable[_Union[ParityFault, _Mapping]]] = ...) -> None: ...

class ParityFault(_message.Message):
    __slots__ = ("container_id", "local_id", "stripe", "wrong_shards")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_ID_FIELD_NUMBER: _ClassVar[int]
    STRIPE_FIELD_NUMBER: _ClassVar[int]
    WRONG_SHARDS_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    local_id: int
    stripe: int
    wrong_shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, container_id: _Optional[int] = ..., local_id: _Optional[int] = ..., stripe: _Optional[int] = ..., wrong_shards: _Optional[_Iterable[int]] = ...) -> None: ...

class TrustReplicaRequest(_message.Message):
    __slots__ = ("container_id", "trusted_datanode_id", "trusted_address", "dry_run", "shown")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    TRUSTED_DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    TRUSTED_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    SHOWN_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    trusted_datanode_id: str
    trusted_address: str
    dry_run: bool
    shown: int
    def __init__(self, container_id: _Optional[int] = ..., trusted_datanode_id: _Optional[str] = ..., trusted_address: _Optional[str] = ..., dry_run: bool = ..., shown: _Optional[int] = ...) -> None: ...

class TrustedChange(_message.Message):
    __slots__ = ("local_id", "offset", "length", "change", "before", "after")
    LOCAL_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    local_id: int
    offset: int
    length: int
    change: str
    before: int
    after: int
    def __init__(self, local_id: _Optional[int] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., change: _Optional[str] = ..., before: _Optional[int] = ..., after: _Optional[int] = ...) -> None: ...

class TrustReplicaResponse(_message.Message):
    __slots__ = ("changes", "change_count", "shown", "result", "failed_count")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    CHANGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SHOWN_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FAILED_COUNT_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[TrustedChange]
    change_count: int
    shown: int
    result: str
    failed_count: int
    def __init__(self, changes: _Optional[_Iterable[_Union[TrustedChange, _Mapping]]] = ..., change_count: _Optional[int] = ..., shown: _Optional[int] = ..., result: _Optional[str] = ..., failed_count: _Optional[int] = ...) -> None: ...

class ListHistoryRequest(_message.Message):
    __slots__ = ("container_id",)
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    def __init__(self, container_id: _Optional[int] = ...) -> None: ...

class HistoryEntry(_message.Message):
    __slots__ = ("at_ms", "state", "generation", "algorithm", "root", "block_count", "tombstone_count", "finding_count", "reason")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_COUNT_FIELD_NUMBER: _ClassVar[int]
    FINDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    state: _container_pb2.ReplicaState
    generation: int
    algorithm: str
    root: int
    block_count: int
    tombstone_count: int
    finding_count: int
    reason: str
    def __init__(self, at_ms: _Optional[int] = ..., state: _Optional[_Union[_container_pb2.ReplicaState, str]] = ..., generation: _Optional[int] = ..., algorithm: _Optional[str] = ..., root: _Optional[int] = ..., block_count: _Optional[int] = ..., tombstone_count: _Optional[int] = ..., finding_count: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ListHistoryResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[HistoryEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[HistoryEntry, _Mapping]]] = ...) -> None: ...

class ListChangesRequest(_message.Message):
    __slots__ = ("since_ms",)
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    since_ms: int
    def __init__(self, since_ms: _Optional[int] = ...) -> None: ...

class ReplicaChange(_message.Message):
    __slots__ = ("container_id", "entry")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    entry: HistoryEntry
    def __init__(self, container_id: _Optional[int] = ..., entry: _Optional[_Union[HistoryEntry, _Mapping]] = ...) -> None: ...

class ListChangesResponse(_message.Message):
    __slots__ = ("changes", "left_out_count", "unread_paths")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNREAD_PATHS_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[ReplicaChange]
    left_out_count: int
    unread_paths: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, changes: _Optional[_Iterable[_Union[ReplicaChange, _Mapping]]] = ..., left_out_count: _Optional[int] = ..., unread_paths: _Optional[_Iterable[str]] = ...) -> None: ...
