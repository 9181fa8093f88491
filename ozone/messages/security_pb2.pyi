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
    __slots__ = ("uuid", "ip_address", "host_name", "uuid128", "id")
    UUID_FIELD_NUMBER: _ClassVar[int]
    IP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    UUID128_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    ip_address: str
    host_name: str
    uuid128: Uuid
    id: DatanodeId
    def __init__(self, uuid: _Optional[str] = ..., ip_address: _Optional[str] = ..., host_name: _Optional[str] = ..., uuid128: _Optional[_Union[Uuid, _Mapping]] = ..., id: _Optional[_Union[DatanodeId, _Mapping]] = ...) -> None: ...

class CertifyDatanode(_message.Message):
    __slots__ = ("datanode", "csr")
    DATANODE_FIELD_NUMBER: _ClassVar[int]
    CSR_FIELD_NUMBER: _ClassVar[int]
    datanode: Datanode
    csr: str
    def __init__(self, datanode: _Optional[_Union[Datanode, _Mapping]] = ..., csr: _Optional[str] = ...) -> None: ...

class CertificateRequest(_message.Message):
    __slots__ = ("kind", "certify_datanode", "list_ca_certificates")
    KIND_FIELD_NUMBER: _ClassVar[int]
    CERTIFY_DATANODE_FIELD_NUMBER: _ClassVar[int]
    LIST_CA_CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    kind: int
    certify_datanode: CertifyDatanode
    list_ca_certificates: Nothing
    def __init__(self, kind: _Optional[int] = ..., certify_datanode: _Optional[_Union[CertifyDatanode, _Mapping]] = ..., list_ca_certificates: _Optional[_Union[Nothing, _Mapping]] = ...) -> None: ...

class Certified(_message.Message):
    __slots__ = ("certificate",)
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    certificate: str
    def __init__(self, certificate: _Optional[str] = ...) -> None: ...

class Certificates(_message.Message):
    __slots__ = ("certificates",)
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    certificates: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, certificates: _Optional[_Iterable[str]] = ...) -> None: ...

class CertificateResponse(_message.Message):
    __slots__ = ("success", "message", "status", "certified", "listed")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CERTIFIED_FIELD_NUMBER: _ClassVar[int]
    LISTED_FIELD_NUMBER: _ClassVar[int]
    success: bool
    message: str
    status: int
    certified: Certified
    listed: Certificates
    def __init__(self, success: bool = ..., message: _Optional[str] = ..., status: _Optional[int] = ..., certified: _Optional[_Union[Certified, _Mapping]] = ..., listed: _Optional[_Union[Certificates, _Mapping]] = ...) -> None: ...

class SecretKey(_message.Message):
    __slots__ = ("id", "created_ms", "expires_ms", "algorithm", "key")
    ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    id: Uuid
    created_ms: int
    expires_ms: int
    algorithm: str
    key: bytes
    def __init__(self, id: _Optional[_Union[Uuid, _Mapping]] = ..., created_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ..., algorithm: _Optional[str] = ..., key: _Optional[bytes] = ...) -> None: ...

class GetSecretKey(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: Uuid
    def __init__(self, id: _Optional[_Union[Uuid, _Mapping]] = ...) -> None: ...

class SecretKeyRequest(_message.Message):
    __slots__ = ("kind", "get")
    KIND_FIELD_NUMBER: _ClassVar[int]
    GET_FIELD_NUMBER: _ClassVar[int]
    kind: int
    get: GetSecretKey
    def __init__(self, kind: _Optional[int] = ..., get: _Optional[_Union[GetSecretKey, _Mapping]] = ...) -> None: ...

class SecretKeyAnswer(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: SecretKey
    def __init__(self, key: _Optional[_Union[SecretKey, _Mapping]] = ...) -> None: ...

class SecretKeyResponse(_message.Message):
    __slots__ = ("success", "message", "status", "current", "named")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    success: bool
    message: str
    status: int
    current: SecretKeyAnswer
    named: SecretKeyAnswer
    def __init__(self, success: bool = ..., message: _Optional[str] = ..., status: _Optional[int] = ..., current: _Optional[_Union[SecretKeyAnswer, _Mapping]] = ..., named: _Optional[_Union[SecretKeyAnswer, _Mapping]] = ...) -> None: ...

class ContainerId(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class ContainerTokenIdentifier(_message.Message):
    __slots__ = ("owner_id", "container_id", "expires_ms", "secret_key_id")
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    SECRET_KEY_ID_FIELD_NUMBER: _ClassVar[int]
    owner_id: str
    container_id: ContainerId
    expires_ms: int
    secret_key_id: Uuid
    def __init__(self, owner_id: _Optional[str] = ..., container_id: _Optional[_Union[ContainerId, _Mapping]] = ..., expires_ms: _Optional[int] = ..., secret_key_id: _Optional[_Union[Uuid, _Mapping]] = ...) -> None: ...

class BlockTokenIdentifier(_message.Message):
    __slots__ = ("owner_id", "block_id", "expires_ms", "modes", "max_length", "secret_key_id")
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    MODES_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    SECRET_KEY_ID_FIELD_NUMBER: _ClassVar[int]
    owner_id: str
    block_id: str
    expires_ms: int
    modes: _containers.RepeatedScalarFieldContainer[int]
    max_length: int
    secret_key_id: Uuid
    def __init__(self, owner_id: _Optional[str] = ..., block_id: _Optional[str] = ..., expires_ms: _Optional[int] = ..., modes: _Optional[_Iterable[int]] = ..., max_length: _Optional[int] = ..., secret_key_id: _Optional[_Union[Uuid, _Mapping]] = ...) -> None: ...
