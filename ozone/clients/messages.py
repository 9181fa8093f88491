"""Messages of Hadoop's RPC, and of the client protocol of Ozone's SCM.

The formats are defined in `proto/ozone/messages/rpc.proto` and `scm.proto`.
"""

from enum import IntEnum
from typing import Any, Final

from ozone.messages import rpc_pb2, scm_pb2


class ScmRequestType(IntEnum):
    """Types of requests to the SCM.

    The lower-case name of a member is the name of the message field that has the request.
    """

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
