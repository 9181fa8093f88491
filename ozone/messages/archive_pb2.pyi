from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Upload(_message.Message):
    __slots__ = ("container_id", "offset", "data", "compression", "size")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    offset: int
    data: bytes
    compression: int
    size: int
    def __init__(self, container_id: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., compression: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Uploaded(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Wish(_message.Message):
    __slots__ = ("container_id", "offset", "compression")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    offset: int
    compression: int
    def __init__(self, container_id: _Optional[int] = ..., offset: _Optional[int] = ..., compression: _Optional[int] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("container_id", "offset", "length", "is_last", "data")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    container_id: int
    offset: int
    length: int
    is_last: bool
    data: bytes
    def __init__(self, container_id: _Optional[int] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., is_last: bool = ..., data: _Optional[bytes] = ...) -> None: ...
