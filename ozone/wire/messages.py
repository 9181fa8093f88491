"""Messages of Hadoop's RPC and of the storage container manager's client protocol.

Numbers are those of `RpcHeader.proto`, `IpcConnectionContext.proto`, `ProtobufRpcEngine.proto`,
`ScmAdminProtocol.proto` and `hdds.proto` as Ozone 2.2.0 has them.
"""

from enum import IntEnum
from typing import Final

from ozone.declaration import BOOL, BYTES, NUMBER, SIGNED, TEXT, ZIGZAG, Fields, message_classes

RPC: Final[dict[str, Fields]] = {
    "RequestHeader": {
        "rpc_kind": (1, SIGNED, False),
        "operation": (2, SIGNED, False),
        "call_id": (3, ZIGZAG, False),
        "client_id": (4, BYTES, False),
        "retry_count": (5, ZIGZAG, False),
    },
    "AnswerHeader": {
        "call_id": (1, NUMBER, False),
        "status": (2, SIGNED, False),
        "exception": (4, TEXT, False),
        "error": (5, TEXT, False),
        "error_detail": (6, SIGNED, False),
    },
    "User": {"effective_user": (1, TEXT, False)},
    "ConnectionContext": {"user": (2, "User", False), "protocol": (3, TEXT, False)},
    "MethodHeader": {
        "method": (1, TEXT, False),
        "protocol": (2, TEXT, False),
        "version": (3, NUMBER, False),
    },
}

_ASKED_OF_ONE: Final[Fields] = {"container_id": (1, SIGNED, False)}

SCM: Final[dict[str, Fields]] = {
    "Nothing": {},
    "Uuid": {"most": (1, SIGNED, False), "least": (2, SIGNED, False)},
    "DatanodeId": {"uuid": (1, "Uuid", False)},
    "Datanode": {
        "uuid": (1, TEXT, False),
        "ip_address": (2, TEXT, False),
        "host_name": (3, TEXT, False),
        "network_location": (7, TEXT, False),
        "op_state_expiry_s": (9, SIGNED, False),
        "uuid128": (100, "Uuid", False),
        "id": (102, "DatanodeId", False),
    },
    "Node": {
        "datanode": (1, "Datanode", False),
        "states": (2, SIGNED, True),
        "op_states": (3, SIGNED, True),
    },
    "Usage": {
        "capacity": (1, SIGNED, False),
        "remaining": (3, SIGNED, False),
        "node": (4, "Datanode", False),
    },
    "PipelineId": {"id": (1, TEXT, False), "uuid128": (100, "Uuid", False)},
    "Pipeline": {
        "members": (1, "Datanode", True),
        "state": (2, SIGNED, False),
        "id": (5, "PipelineId", False),
    },
    "Coding": {
        "data": (1, SIGNED, False),
        "parity": (2, SIGNED, False),
        "codec": (3, TEXT, False),
    },
    "Container": {
        "container_id": (1, SIGNED, False),
        "state": (2, SIGNED, False),
        "pipeline_id": (3, "PipelineId", False),
        "used_bytes": (4, NUMBER, False),
        "key_count": (5, NUMBER, False),
        "state_since_ms": (6, SIGNED, False),
        "sequence_id": (9, SIGNED, False),
        "factor": (10, SIGNED, False),
        "type": (11, SIGNED, False),
        "coding": (12, "Coding", False),
        "suppressed": (13, BOOL, False),
    },
    "Replica": {
        "container_id": (1, SIGNED, False),
        "state": (2, TEXT, False),
        "datanode": (3, "Datanode", False),
        "origin": (4, TEXT, False),
        "sequence_id": (5, SIGNED, False),
        "key_count": (6, SIGNED, False),
        "used_bytes": (7, SIGNED, False),
        "index": (8, SIGNED, False),
        "checksum": (9, SIGNED, False),
    },
    "ListContainers": {"count": (1, NUMBER, False), "start": (2, NUMBER, False)},
    "ContainersListed": {"containers": (1, "Container", True), "total": (2, SIGNED, False)},
    "GetReplicas": _ASKED_OF_ONE,
    "ReplicasListed": {"replicas": (1, "Replica", True)},
    "QueryNodes": {"scope": (2, SIGNED, False)},
    "NodesListed": {"nodes": (1, "Node", True)},
    "GetUsage": {"uuid": (2, TEXT, False)},
    "UsageTold": {"usages": (1, "Usage", True)},
    "PipelinesListed": {"pipelines": (1, "Pipeline", True)},
    "ScmTold": {"cluster_id": (1, TEXT, False), "scm_id": (2, TEXT, False)},
    "SafeModeTold": {"is_on": (1, BOOL, False)},
    "Reconcile": _ASKED_OF_ONE,
    "Request": {
        "kind": (1, SIGNED, False),
        "version": (3, NUMBER, False),
        "list_containers": (9, "ListContainers", False),
        "query_nodes": (11, "QueryNodes", False),
        "list_pipelines": (14, "Nothing", False),
        "get_scm": (18, "Nothing", False),
        "get_safe_mode": (19, "Nothing", False),
        "get_usage": (30, "GetUsage", False),
        "get_replicas": (39, "GetReplicas", False),
        "reconcile": (49, "Reconcile", False),
    },
    "Response": {
        "kind": (1, SIGNED, False),
        "success": (3, BOOL, False),
        "message": (4, TEXT, False),
        "status": (5, SIGNED, False),
        "list_containers": (9, "ContainersListed", False),
        "query_nodes": (11, "NodesListed", False),
        "list_pipelines": (14, "PipelinesListed", False),
        "get_scm": (18, "ScmTold", False),
        "get_safe_mode": (19, "SafeModeTold", False),
        "get_usage": (30, "UsageTold", False),
        "get_replicas": (39, "ReplicasListed", False),
        "reconcile": (49, "Nothing", False),
    },
}
"""What is asked and what is answered have the same name in Request and Response."""


class Ask(IntEnum):
    """Commands of the SCM; the name in lower case is the field that carries it."""

    LIST_CONTAINERS = 4
    QUERY_NODES = 6
    LIST_PIPELINES = 9
    GET_SCM = 13
    GET_SAFE_MODE = 14
    GET_USAGE = 25
    GET_REPLICAS = 34
    RECONCILE = 45


_RPC: Final = message_classes("suture.ozone.rpc", RPC)
REQUEST_HEADER: Final = _RPC["RequestHeader"]
ANSWER_HEADER: Final = _RPC["AnswerHeader"]
CONNECTION_CONTEXT: Final = _RPC["ConnectionContext"]
METHOD_HEADER: Final = _RPC["MethodHeader"]

_SCM: Final = message_classes("suture.ozone.scm", SCM)
REQUEST: Final = _SCM["Request"]
RESPONSE: Final = _SCM["Response"]
