from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestHeader(_message.Message):
    __slots__ = ("rpc_kind", "operation", "call_id", "client_id", "retry_count")
    RPC_KIND_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    RETRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    rpc_kind: int
    operation: int
    call_id: int
    client_id: bytes
    retry_count: int
    def __init__(self, rpc_kind: _Optional[int] = ..., operation: _Optional[int] = ..., call_id: _Optional[int] = ..., client_id: _Optional[bytes] = ..., retry_count: _Optional[int] = ...) -> None: ...

class AnswerHeader(_message.Message):
    __slots__ = ("call_id", "status", "exception", "error", "error_detail")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EXCEPTION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAIL_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    status: int
    exception: str
    error: str
    error_detail: int
    def __init__(self, call_id: _Optional[int] = ..., status: _Optional[int] = ..., exception: _Optional[str] = ..., error: _Optional[str] = ..., error_detail: _Optional[int] = ...) -> None: ...

class User(_message.Message):
    __slots__ = ("effective_user",)
    EFFECTIVE_USER_FIELD_NUMBER: _ClassVar[int]
    effective_user: str
    def __init__(self, effective_user: _Optional[str] = ...) -> None: ...

class ConnectionContext(_message.Message):
    __slots__ = ("user", "protocol")
    USER_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    user: User
    protocol: str
    def __init__(self, user: _Optional[_Union[User, _Mapping]] = ..., protocol: _Optional[str] = ...) -> None: ...

class MethodHeader(_message.Message):
    __slots__ = ("method", "protocol", "version")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    method: str
    protocol: str
    version: int
    def __init__(self, method: _Optional[str] = ..., protocol: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class SaslAuth(_message.Message):
    __slots__ = ("method", "mechanism", "protocol", "server_id")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    method: str
    mechanism: str
    protocol: str
    server_id: str
    def __init__(self, method: _Optional[str] = ..., mechanism: _Optional[str] = ..., protocol: _Optional[str] = ..., server_id: _Optional[str] = ...) -> None: ...

class Sasl(_message.Message):
    __slots__ = ("version", "state", "token", "auths")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    AUTHS_FIELD_NUMBER: _ClassVar[int]
    version: int
    state: int
    token: bytes
    auths: _containers.RepeatedCompositeFieldContainer[SaslAuth]
    def __init__(self, version: _Optional[int] = ..., state: _Optional[int] = ..., token: _Optional[bytes] = ..., auths: _Optional[_Iterable[_Union[SaslAuth, _Mapping]]] = ...) -> None: ...
