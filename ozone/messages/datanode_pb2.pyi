from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Result(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUCCESS: _ClassVar[Result]
    UNSUPPORTED_REQUEST: _ClassVar[Result]
    MALFORMED_REQUEST: _ClassVar[Result]
    CONTAINER_INTERNAL_ERROR: _ClassVar[Result]
    CONTAINER_EXISTS: _ClassVar[Result]
    NO_SUCH_ALGORITHM: _ClassVar[Result]
    CONTAINER_NOT_FOUND: _ClassVar[Result]
    IO_EXCEPTION: _ClassVar[Result]
    UNABLE_TO_READ_METADATA_DB: _ClassVar[Result]
    NO_SUCH_BLOCK: _ClassVar[Result]
    OVERWRITE_FLAG_REQUIRED: _ClassVar[Result]
    INVALID_WRITE_SIZE: _ClassVar[Result]
    CHECKSUM_MISMATCH: _ClassVar[Result]
    UNABLE_TO_FIND_CHUNK: _ClassVar[Result]
    INVALID_ARGUMENT: _ClassVar[Result]
    CLOSED_CONTAINER_IO: _ClassVar[Result]
    UNCLOSED_CONTAINER_IO: _ClassVar[Result]
    DELETE_ON_OPEN_CONTAINER: _ClassVar[Result]
    INVALID_CONTAINER_STATE: _ClassVar[Result]
    DISK_OUT_OF_SPACE: _ClassVar[Result]
    CONTAINER_METADATA_ERROR: _ClassVar[Result]
    CONTAINER_CHECKSUM_ERROR: _ClassVar[Result]
    CONTAINER_UNHEALTHY: _ClassVar[Result]
    UNKNOWN_BCSID: _ClassVar[Result]
    BCSID_MISMATCH: _ClassVar[Result]
    CONTAINER_MISSING: _ClassVar[Result]
    BLOCK_TOKEN_VERIFICATION_FAILED: _ClassVar[Result]
    CHUNK_FILE_INCONSISTENCY: _ClassVar[Result]
    DELETE_ON_NON_EMPTY_CONTAINER: _ClassVar[Result]
    CONTAINER_ID_MISMATCH: _ClassVar[Result]
SUCCESS: Result
UNSUPPORTED_REQUEST: Result
MALFORMED_REQUEST: Result
CONTAINER_INTERNAL_ERROR: Result
CONTAINER_EXISTS: Result
NO_SUCH_ALGORITHM: Result
CONTAINER_NOT_FOUND: Result
IO_EXCEPTION: Result
UNABLE_TO_READ_METADATA_DB: Result
NO_SUCH_BLOCK: Result
OVERWRITE_FLAG_REQUIRED: Result
INVALID_WRITE_SIZE: Result
CHECKSUM_MISMATCH: Result
UNABLE_TO_FIND_CHUNK: Result
INVALID_ARGUMENT: Result
CLOSED_CONTAINER_IO: Result
UNCLOSED_CONTAINER_IO: Result
DELETE_ON_OPEN_CONTAINER: Result
INVALID_CONTAINER_STATE: Result
DISK_OUT_OF_SPACE: Result
CONTAINER_METADATA_ERROR: Result
CONTAINER_CHECKSUM_ERROR: Result
CONTAINER_UNHEALTHY: Result
UNKNOWN_BCSID: Result
BCSID_MISMATCH: Result
CONTAINER_MISSING: Result
BLOCK_TOKEN_VERIFICATION_FAILED: Result
CHUNK_FILE_INCONSISTENCY: Result
DELETE_ON_NON_EMPTY_CONTAINER: Result
CONTAINER_ID_MISMATCH: Result

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
    __slots__ = ("type", "bytes_per_checksum")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    type: int
    bytes_per_checksum: int
    def __init__(self, type: _Optional[int] = ..., bytes_per_checksum: _Optional[int] = ...) -> None: ...

class ChunkInfo(_message.Message):
    __slots__ = ("name", "offset", "length", "checksum_data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    offset: int
    length: int
    checksum_data: ChecksumData
    def __init__(self, name: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., checksum_data: _Optional[_Union[ChecksumData, _Mapping]] = ...) -> None: ...

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

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

class PutBlock(_message.Message):
    __slots__ = ("block",)
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    block: bytes
    def __init__(self, block: _Optional[bytes] = ...) -> None: ...

class WriteChunk(_message.Message):
    __slots__ = ("block_id", "chunk", "data")
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    block_id: BlockId
    chunk: bytes
    data: bytes
    def __init__(self, block_id: _Optional[_Union[BlockId, _Mapping]] = ..., chunk: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

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

class GetContainerChecksumInfo(_message.Message):
    __slots__ = ("container_id",)
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    def __init__(self, container_id: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("command", "container_id", "datanode_id", "create_container", "read_container", "delete_container", "close_container", "put_block", "get_block", "list_block", "read_chunk", "write_chunk", "encoded_token", "get_container_checksum_info")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    DATANODE_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    READ_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    DELETE_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    CLOSE_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    PUT_BLOCK_FIELD_NUMBER: _ClassVar[int]
    GET_BLOCK_FIELD_NUMBER: _ClassVar[int]
    LIST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    READ_CHUNK_FIELD_NUMBER: _ClassVar[int]
    WRITE_CHUNK_FIELD_NUMBER: _ClassVar[int]
    ENCODED_TOKEN_FIELD_NUMBER: _ClassVar[int]
    GET_CONTAINER_CHECKSUM_INFO_FIELD_NUMBER: _ClassVar[int]
    command: int
    container_id: int
    datanode_id: str
    create_container: CreateContainer
    read_container: Nothing
    delete_container: DeleteContainer
    close_container: Nothing
    put_block: PutBlock
    get_block: GetBlock
    list_block: ListBlock
    read_chunk: ReadChunk
    write_chunk: WriteChunk
    encoded_token: str
    get_container_checksum_info: GetContainerChecksumInfo
    def __init__(self, command: _Optional[int] = ..., container_id: _Optional[int] = ..., datanode_id: _Optional[str] = ..., create_container: _Optional[_Union[CreateContainer, _Mapping]] = ..., read_container: _Optional[_Union[Nothing, _Mapping]] = ..., delete_container: _Optional[_Union[DeleteContainer, _Mapping]] = ..., close_container: _Optional[_Union[Nothing, _Mapping]] = ..., put_block: _Optional[_Union[PutBlock, _Mapping]] = ..., get_block: _Optional[_Union[GetBlock, _Mapping]] = ..., list_block: _Optional[_Union[ListBlock, _Mapping]] = ..., read_chunk: _Optional[_Union[ReadChunk, _Mapping]] = ..., write_chunk: _Optional[_Union[WriteChunk, _Mapping]] = ..., encoded_token: _Optional[str] = ..., get_container_checksum_info: _Optional[_Union[GetContainerChecksumInfo, _Mapping]] = ...) -> None: ...

class ContainerData(_message.Message):
    __slots__ = ("container_id", "used_bytes", "block_count", "state")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    used_bytes: int
    block_count: int
    state: int
    def __init__(self, container_id: _Optional[int] = ..., used_bytes: _Optional[int] = ..., block_count: _Optional[int] = ..., state: _Optional[int] = ...) -> None: ...

class ContainerAnswer(_message.Message):
    __slots__ = ("container",)
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    container: ContainerData
    def __init__(self, container: _Optional[_Union[ContainerData, _Mapping]] = ...) -> None: ...

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

class ChecksumInfoAnswer(_message.Message):
    __slots__ = ("container_id", "info")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    info: bytes
    def __init__(self, container_id: _Optional[int] = ..., info: _Optional[bytes] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("command", "result", "message", "read_container", "get_block", "list_block", "read_chunk", "get_container_checksum_info")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    READ_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    GET_BLOCK_FIELD_NUMBER: _ClassVar[int]
    LIST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    READ_CHUNK_FIELD_NUMBER: _ClassVar[int]
    GET_CONTAINER_CHECKSUM_INFO_FIELD_NUMBER: _ClassVar[int]
    command: int
    result: int
    message: bytes
    read_container: ContainerAnswer
    get_block: BlockAnswer
    list_block: BlocksAnswer
    read_chunk: ChunkAnswer
    get_container_checksum_info: ChecksumInfoAnswer
    def __init__(self, command: _Optional[int] = ..., result: _Optional[int] = ..., message: _Optional[bytes] = ..., read_container: _Optional[_Union[ContainerAnswer, _Mapping]] = ..., get_block: _Optional[_Union[BlockAnswer, _Mapping]] = ..., list_block: _Optional[_Union[BlocksAnswer, _Mapping]] = ..., read_chunk: _Optional[_Union[ChunkAnswer, _Mapping]] = ..., get_container_checksum_info: _Optional[_Union[ChecksumInfoAnswer, _Mapping]] = ...) -> None: ...
