from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class KeyValue(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

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

class ChecksumData(_message.Message):
    __slots__ = ("type", "bytes_per_checksum", "checksums")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    type: int
    bytes_per_checksum: int
    checksums: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, type: _Optional[int] = ..., bytes_per_checksum: _Optional[int] = ..., checksums: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ChunkInfo(_message.Message):
    __slots__ = ("name", "offset", "length", "metadata", "checksum_data", "stripe_checksum")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_DATA_FIELD_NUMBER: _ClassVar[int]
    STRIPE_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    offset: int
    length: int
    metadata: _containers.RepeatedCompositeFieldContainer[KeyValue]
    checksum_data: ChecksumData
    stripe_checksum: bytes
    def __init__(self, name: _Optional[bytes] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., metadata: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ..., checksum_data: _Optional[_Union[ChecksumData, _Mapping]] = ..., stripe_checksum: _Optional[bytes] = ...) -> None: ...

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

class CreateContainer(_message.Message):
    __slots__ = ("replica_index", "state")
    REPLICA_INDEX_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    replica_index: int
    state: int
    def __init__(self, replica_index: _Optional[int] = ..., state: _Optional[int] = ...) -> None: ...

class DeleteContainer(_message.Message):
    __slots__ = ("force",)
    FORCE_FIELD_NUMBER: _ClassVar[int]
    force: bool
    def __init__(self, force: bool = ...) -> None: ...

class ListContainer(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class PutBlock(_message.Message):
    __slots__ = ("block",)
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    block: BlockData
    def __init__(self, block: _Optional[_Union[BlockData, _Mapping]] = ...) -> None: ...

class GetBlock(_message.Message):
    __slots__ = ("block_id",)
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    block_id: BlockId
    def __init__(self, block_id: _Optional[_Union[BlockId, _Mapping]] = ...) -> None: ...

class ListBlock(_message.Message):
    __slots__ = ("start_local_id", "count")
    START_LOCAL_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    start_local_id: int
    count: int
    def __init__(self, start_local_id: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class ReadChunk(_message.Message):
    __slots__ = ("block_id", "chunk", "version")
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    block_id: BlockId
    chunk: ChunkInfo
    version: int
    def __init__(self, block_id: _Optional[_Union[BlockId, _Mapping]] = ..., chunk: _Optional[_Union[ChunkInfo, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class WriteChunk(_message.Message):
    __slots__ = ("block_id", "chunk", "data", "commit")
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    block_id: BlockId
    chunk: ChunkInfo
    data: bytes
    commit: PutBlock
    def __init__(self, block_id: _Optional[_Union[BlockId, _Mapping]] = ..., chunk: _Optional[_Union[ChunkInfo, _Mapping]] = ..., data: _Optional[bytes] = ..., commit: _Optional[_Union[PutBlock, _Mapping]] = ...) -> None: ...

class Echo(_message.Message):
    __slots__ = ("payload", "answer_bytes", "sleep_ms")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ANSWER_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLEEP_MS_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    answer_bytes: int
    sleep_ms: int
    def __init__(self, payload: _Optional[bytes] = ..., answer_bytes: _Optional[int] = ..., sleep_ms: _Optional[int] = ...) -> None: ...

class GetContainerChecksumInfo(_message.Message):
    __slots__ = ("container_id",)
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    def __init__(self, container_id: _Optional[int] = ...) -> None: ...

class ReadBlock(_message.Message):
    __slots__ = ("block_id", "offset", "length", "answer_bytes")
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    ANSWER_BYTES_FIELD_NUMBER: _ClassVar[int]
    block_id: BlockId
    offset: int
    length: int
    answer_bytes: int
    def __init__(self, block_id: _Optional[_Union[BlockId, _Mapping]] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., answer_bytes: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("command", "trace_id", "container_id", "datanode_id", "create_container", "read_container", "delete_container", "list_container", "close_container", "put_block", "get_block", "list_block", "read_chunk", "write_chunk", "get_committed_block_length", "encoded_token", "echo", "get_container_checksum_info", "read_block", "client_id", "call_id")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    READ_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    DELETE_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    LIST_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    CLOSE_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    PUT_BLOCK_FIELD_NUMBER: _ClassVar[int]
    GET_BLOCK_FIELD_NUMBER: _ClassVar[int]
    LIST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    READ_CHUNK_FIELD_NUMBER: _ClassVar[int]
    WRITE_CHUNK_FIELD_NUMBER: _ClassVar[int]
    GET_COMMITTED_BLOCK_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ENCODED_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    GET_CONTAINER_CHECKSUM_INFO_FIELD_NUMBER: _ClassVar[int]
    READ_BLOCK_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    command: int
    trace_id: bytes
    container_id: int
    datanode_id: bytes
    create_container: CreateContainer
    read_container: Nothing
    delete_container: DeleteContainer
    list_container: ListContainer
    close_container: Nothing
    put_block: PutBlock
    get_block: GetBlock
    list_block: ListBlock
    read_chunk: ReadChunk
    write_chunk: WriteChunk
    get_committed_block_length: GetBlock
    encoded_token: bytes
    echo: Echo
    get_container_checksum_info: GetContainerChecksumInfo
    read_block: ReadBlock
    client_id: bytes
    call_id: int
    def __init__(self, command: _Optional[int] = ..., trace_id: _Optional[bytes] = ..., container_id: _Optional[int] = ..., datanode_id: _Optional[bytes] = ..., create_container: _Optional[_Union[CreateContainer, _Mapping]] = ..., read_container: _Optional[_Union[Nothing, _Mapping]] = ..., delete_container: _Optional[_Union[DeleteContainer, _Mapping]] = ..., list_container: _Optional[_Union[ListContainer, _Mapping]] = ..., close_container: _Optional[_Union[Nothing, _Mapping]] = ..., put_block: _Optional[_Union[PutBlock, _Mapping]] = ..., get_block: _Optional[_Union[GetBlock, _Mapping]] = ..., list_block: _Optional[_Union[ListBlock, _Mapping]] = ..., read_chunk: _Optional[_Union[ReadChunk, _Mapping]] = ..., write_chunk: _Optional[_Union[WriteChunk, _Mapping]] = ..., get_committed_block_length: _Optional[_Union[GetBlock, _Mapping]] = ..., encoded_token: _Optional[bytes] = ..., echo: _Optional[_Union[Echo, _Mapping]] = ..., get_container_checksum_info: _Optional[_Union[GetContainerChecksumInfo, _Mapping]] = ..., read_block: _Optional[_Union[ReadBlock, _Mapping]] = ..., client_id: _Optional[bytes] = ..., call_id: _Optional[int] = ...) -> None: ...

class ContainerData(_message.Message):
    __slots__ = ("container_id", "path", "used_bytes", "size", "block_count", "state", "type")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    path: bytes
    used_bytes: int
    size: int
    block_count: int
    state: int
    type: int
    def __init__(self, container_id: _Optional[int] = ..., path: _Optional[bytes] = ..., used_bytes: _Optional[int] = ..., size: _Optional[int] = ..., block_count: _Optional[int] = ..., state: _Optional[int] = ..., type: _Optional[int] = ...) -> None: ...

class ContainerAnswer(_message.Message):
    __slots__ = ("container",)
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    container: ContainerData
    def __init__(self, container: _Optional[_Union[ContainerData, _Mapping]] = ...) -> None: ...

class ContainersAnswer(_message.Message):
    __slots__ = ("containers",)
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    containers: _containers.RepeatedCompositeFieldContainer[ContainerData]
    def __init__(self, containers: _Optional[_Iterable[_Union[ContainerData, _Mapping]]] = ...) -> None: ...

class Closed(_message.Message):
    __slots__ = ("container_id",)
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    def __init__(self, container_id: _Optional[int] = ...) -> None: ...

class CommittedLength(_message.Message):
    __slots__ = ("block_id", "length")
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    block_id: BlockId
    length: int
    def __init__(self, block_id: _Optional[_Union[BlockId, _Mapping]] = ..., length: _Optional[int] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("committed",)
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    committed: CommittedLength
    def __init__(self, committed: _Optional[_Union[CommittedLength, _Mapping]] = ...) -> None: ...

class BlockAnswer(_message.Message):
    __slots__ = ("block",)
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    block: bytes
    def __init__(self, block: _Optional[bytes] = ...) -> None: ...

class BlocksAnswer(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, blocks: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Buffers(_message.Message):
    __slots__ = ("buffers",)
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    buffers: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, buffers: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ChunkAnswer(_message.Message):
    __slots__ = ("block_id", "chunk", "data", "buffers")
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    block_id: BlockId
    chunk: ChunkInfo
    data: bytes
    buffers: Buffers
    def __init__(self, block_id: _Optional[_Union[BlockId, _Mapping]] = ..., chunk: _Optional[_Union[ChunkInfo, _Mapping]] = ..., data: _Optional[bytes] = ..., buffers: _Optional[_Union[Buffers, _Mapping]] = ...) -> None: ...

class EchoAnswer(_message.Message):
    __slots__ = ("payload",)
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    def __init__(self, payload: _Optional[bytes] = ...) -> None: ...

class ChecksumInfoAnswer(_message.Message):
    __slots__ = ("container_id", "info")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    info: bytes
    def __init__(self, container_id: _Optional[int] = ..., info: _Optional[bytes] = ...) -> None: ...

class BlockPiece(_message.Message):
    __slots__ = ("checksum_data", "offset", "data")
    CHECKSUM_DATA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    checksum_data: ChecksumData
    offset: int
    data: bytes
    def __init__(self, checksum_data: _Optional[_Union[ChecksumData, _Mapping]] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("command", "trace_id", "result", "message", "create_container", "read_container", "delete_container", "list_container", "close_container", "put_block", "get_block", "list_block", "write_chunk", "read_chunk", "get_committed_block_length", "echo", "get_container_checksum_info", "read_block", "client_id", "call_id")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CREATE_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    READ_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    DELETE_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    LIST_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    CLOSE_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    PUT_BLOCK_FIELD_NUMBER: _ClassVar[int]
    GET_BLOCK_FIELD_NUMBER: _ClassVar[int]
    LIST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    WRITE_CHUNK_FIELD_NUMBER: _ClassVar[int]
    READ_CHUNK_FIELD_NUMBER: _ClassVar[int]
    GET_COMMITTED_BLOCK_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    GET_CONTAINER_CHECKSUM_INFO_FIELD_NUMBER: _ClassVar[int]
    READ_BLOCK_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    command: int
    trace_id: bytes
    result: int
    message: bytes
    create_container: Nothing
    read_container: ContainerAnswer
    delete_container: Nothing
    list_container: ContainersAnswer
    close_container: Closed
    put_block: Committed
    get_block: BlockAnswer
    list_block: BlocksAnswer
    write_chunk: Committed
    read_chunk: ChunkAnswer
    get_committed_block_length: CommittedLength
    echo: EchoAnswer
    get_container_checksum_info: ChecksumInfoAnswer
    read_block: BlockPiece
    client_id: bytes
    call_id: int
    def __init__(self, command: _Optional[int] = ..., trace_id: _Optional[bytes] = ..., result: _Optional[int] = ..., message: _Optional[bytes] = ..., create_container: _Optional[_Union[Nothing, _Mapping]] = ..., read_container: _Optional[_Union[ContainerAnswer, _Mapping]] = ..., delete_container: _Optional[_Union[Nothing, _Mapping]] = ..., list_container: _Optional[_Union[ContainersAnswer, _Mapping]] = ..., close_container: _Optional[_Union[Closed, _Mapping]] = ..., put_block: _Optional[_Union[Committed, _Mapping]] = ..., get_block: _Optional[_Union[BlockAnswer, _Mapping]] = ..., list_block: _Optional[_Union[BlocksAnswer, _Mapping]] = ..., write_chunk: _Optional[_Union[Committed, _Mapping]] = ..., read_chunk: _Optional[_Union[ChunkAnswer, _Mapping]] = ..., get_committed_block_length: _Optional[_Union[CommittedLength, _Mapping]] = ..., echo: _Optional[_Union[EchoAnswer, _Mapping]] = ..., get_container_checksum_info: _Optional[_Union[ChecksumInfoAnswer, _Mapping]] = ..., read_block: _Optional[_Union[BlockPiece, _Mapping]] = ..., client_id: _Optional[bytes] = ..., call_id: _Optional[int] = ...) -> None: ...
