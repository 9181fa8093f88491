from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

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

class KeyValue(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("name", "offset", "length", "checksum_data", "stripe_checksum")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_DATA_FIELD_NUMBER: _ClassVar[int]
    STRIPE_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    name: str
    offset: int
    length: int
    checksum_data: ChecksumData
    stripe_checksum: bytes
    def __init__(self, name: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., checksum_data: _Optional[_Union[ChecksumData, _Mapping]] = ..., stripe_checksum: _Optional[bytes] = ...) -> None: ...

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

class ChunkTree(_message.Message):
    __slots__ = ("offset", "length", "checksum", "matches")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    offset: int
    length: int
    checksum: int
    matches: bool
    def __init__(self, offset: _Optional[int] = ..., length: _Optional[int] = ..., checksum: _Optional[int] = ..., matches: bool = ...) -> None: ...

class BlockTree(_message.Message):
    __slots__ = ("block_id", "checksum", "chunks", "deleted")
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    block_id: int
    checksum: int
    chunks: _containers.RepeatedCompositeFieldContainer[ChunkTree]
    deleted: bool
    def __init__(self, block_id: _Optional[int] = ..., checksum: _Optional[int] = ..., chunks: _Optional[_Iterable[_Union[ChunkTree, _Mapping]]] = ..., deleted: bool = ...) -> None: ...

class ContainerTree(_message.Message):
    __slots__ = ("checksum", "blocks")
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    checksum: int
    blocks: _containers.RepeatedCompositeFieldContainer[BlockTree]
    def __init__(self, checksum: _Optional[int] = ..., blocks: _Optional[_Iterable[_Union[BlockTree, _Mapping]]] = ...) -> None: ...

class ChecksumInfo(_message.Message):
    __slots__ = ("container_id", "tree")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    tree: ContainerTree
    def __init__(self, container_id: _Optional[int] = ..., tree: _Optional[_Union[ContainerTree, _Mapping]] = ...) -> None: ...

class BlockOutline(_message.Message):
    __slots__ = ("metadata", "chunks")
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    metadata: _containers.RepeatedScalarFieldContainer[bytes]
    chunks: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, metadata: _Optional[_Iterable[bytes]] = ..., chunks: _Optional[_Iterable[bytes]] = ...) -> None: ...

class TreeOutline(_message.Message):
    __slots__ = ("checksum", "blocks")
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    checksum: int
    blocks: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, checksum: _Optional[int] = ..., blocks: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ChecksumInfoOutline(_message.Message):
    __slots__ = ("container_id", "tree")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    tree: TreeOutline
    def __init__(self, container_id: _Optional[int] = ..., tree: _Optional[_Union[TreeOutline, _Mapping]] = ...) -> None: ...

class DeletedBlocks(_message.Message):
    __slots__ = ("transaction_id", "container_id", "local_ids")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_IDS_FIELD_NUMBER: _ClassVar[int]
    transaction_id: int
    container_id: int
    local_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, transaction_id: _Optional[int] = ..., container_id: _Optional[int] = ..., local_ids: _Optional[_Iterable[int]] = ...) -> None: ...
