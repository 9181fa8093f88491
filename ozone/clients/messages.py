"""Messages of Hadoop's RPC and of the storage container manager's client protocol
(`proto/ozone/messages/rpc.proto`, `scm.proto`)."""

from enum import IntEnum
from typing import Any, Final

from ozone.messages import rpc_pb2, scm_pb2


class ScmRequestType(IntEnum):
    """Commands of the SCM. The lower-case name of a member is the message field with its
    request."""

    LIST_CONTAINERS = 4
    QUERY_NODES = 6
    LIST_PIPELINES = 9
    GET_SCM = 13
    GET_SAFE_MODE = 14
    GET_USAGE = 25
    GET_REPLICAS = 34
    RECONCILE = 45


REQUEST_HEADER: Final[Any] = rpc_pb2.RequestHeader
ANSWER_HEADER: Final[Any] = rpc_pb2.AnswerHeader
CONNECTION_CONTEXT: Final[Any] = rpc_pb2.ConnectionContext
METHOD_HEADER: Final[Any] = rpc_pb2.MethodHeader
SASL: Final[Any] = rpc_pb2.Sasl

REQUEST: Final[Any] = scm_pb2.Request
RESPONSE: Final[Any] = scm_pb2.Response
