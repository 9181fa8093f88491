"""Messages between a datanode and Ozone's storage container manager.

Numbers are those of `ScmServerDatanodeHeartbeatProtocol.proto` and `hdds.proto` in Ozone 2.2.0; a
test compares each with Ozone's own classes. Received texts may be invalid Unicode, so they are
bytes here and are decoded where they are used.
"""

from enum import IntEnum
from typing import Final

from ozone.declaration import BOOL, BYTES, NUMBER, SIGNED, TEXT, Fields, message_classes

PROTOCOL: Final = "org.apache.hadoop.ozone.protocol.StorageContainerDatanodeProtocol"
PROTOCOL_VERSION: Final = 1
METHOD: Final = "submitRequest"
OK: Final = 1  # Status
REGISTERED: Final = 1  # ErrorCode
EXECUTED: Final = 2  # CommandStatus.Status
FAILED: Final = 3
DISK: Final = 1  # StorageTypeProto
LOW: Final = 2  # ReplicationCommandPriority
CLOSE: Final = 1  # ContainerAction.Action
FULL: Final = 1  # ContainerAction.Reason


class Ask(IntEnum):
    """A datanode's requests."""

    GET_VERSION = 1
    REGISTER = 2
    HEARTBEAT = 3


class Order(IntEnum):
    """Commands of the storage container manager (SCMCommandProto.Type)."""

    REREGISTER = 1
    DELETE_BLOCKS = 2
    CLOSE = 3
    DELETE = 4
    REPLICATE = 5
    CREATE_PIPELINE = 6
    CLOSE_PIPELINE = 7
    SET_OPERATIONAL_STATE = 8
    FINALIZE_LAYOUT = 9
    REFRESH_VOLUME_USAGE = 10
    RECONSTRUCT = 11
    RECONCILE = 12


class State(IntEnum):
    """States of a replica (ContainerReplicaProto.State). Ozone reports no RECOVERING ones."""

    OPEN = 1
    CLOSING = 2
    QUASI_CLOSED = 3
    CLOSED = 4
    UNHEALTHY = 5
    DELETED = 7


class OpState(IntEnum):
    """The operational state of a datanode in the SCM (NodeOperationalState)."""

    IN_SERVICE = 1
    ENTERING_MAINTENANCE = 2
    IN_MAINTENANCE = 3
    DECOMMISSIONING = 4
    DECOMMISSIONED = 5


_ABOUT_PIPELINE: Final[Fields] = {"pipeline_id": (1, "PipelineId", False)}
_CONTAINER: Final[Fields] = {"container_id": (1, SIGNED, False)}
_STORAGE: Final[Fields] = {
    "capacity": (3, NUMBER, False),
    "used": (4, NUMBER, False),
    "remaining": (5, NUMBER, False),
}

DATANODE: Final[dict[str, Fields]] = {
    "Uuid": {"most": (1, SIGNED, False), "least": (2, SIGNED, False)},
    "DatanodeId": {"uuid": (1, "Uuid", False)},
    "Port": {"name": (1, TEXT, False), "value": (2, NUMBER, False)},
    "Details": {
        "uuid": (1, TEXT, False),
        "ip_address": (2, TEXT, False),
        "host_name": (3, TEXT, False),
        "ports": (4, "Port", True),
        "network_location": (7, TEXT, False),
        "op_state": (8, SIGNED, False),
        "op_state_expiry_s": (9, SIGNED, False),
        "current_version": (10, SIGNED, False),
        "uuid128": (100, "Uuid", False),
        "id": (102, "DatanodeId", False),
    },
    "ExtendedDetails": {
        "details": (1, "Details", False),
        "version": (2, TEXT, False),
        "setup_time_ms": (3, SIGNED, False),
    },
    "Layout": {"metadata": (1, NUMBER, False), "software": (2, NUMBER, False)},
    "Storage": {
        "uuid": (1, TEXT, False),
        "location": (2, TEXT, False),
        **_STORAGE,
        "type": (6, SIGNED, False),
        "failed": (7, BOOL, False),
        "committed": (8, NUMBER, False),
        "spare": (9, NUMBER, False),
        "reserved": (10, NUMBER, False),
        "fs_capacity": (11, NUMBER, False),
        "fs_available": (12, NUMBER, False),
    },
    "MetadataStorage": {
        "location": (1, TEXT, False),
        "type": (2, SIGNED, False),
        **_STORAGE,
        "failed": (6, BOOL, False),
    },
    "NodeReport": {
        "storages": (1, "Storage", True),
        "metadata_storages": (2, "MetadataStorage", True),
    },
    "Replica": {
        "container_id": (1, SIGNED, False),
        "state": (2, SIGNED, False),
        "used": (4, SIGNED, False),
        "key_count": (5, SIGNED, False),
        "bcsid": (12, NUMBER, False),
        "origin": (13, TEXT, False),
        "replica_index": (14, SIGNED, False),
        "is_empty": (15, BOOL, False),
        "checksum": (16, SIGNED, False),
    },
    "Replicas": {"replicas": (1, "Replica", True)},
    "PipelineReports": {},
    "QueueReport": {"commands": (1, SIGNED, True), "counts": (2, NUMBER, True)},
    "DeleteResult": {
        "transaction_id": (1, SIGNED, False),
        "container_id": (2, SIGNED, False),
        "success": (3, BOOL, False),
    },
    "DeleteAck": {"results": (1, "DeleteResult", True), "datanode_id": (2, TEXT, False)},
    "CommandStatus": {
        "command_id": (1, SIGNED, False),
        "status": (2, SIGNED, False),
        "type": (3, SIGNED, False),
        "message": (4, TEXT, False),
        "delete_ack": (5, "DeleteAck", False),
    },
    "Action": {
        "container_id": (1, SIGNED, False),
        "action": (2, SIGNED, False),
        "reason": (3, SIGNED, False),
    },
    "Actions": {"actions": (1, "Action", True)},
    "CommandStatuses": {"statuses": (1, "CommandStatus", True)},
    "Nothing": {},
    "Register": {
        "extended_details": (1, "ExtendedDetails", False),
        "node": (2, "NodeReport", False),
        "containers": (3, "Replicas", False),
        "pipelines": (4, "PipelineReports", False),
        "layout": (5, "Layout", False),
    },
    "Heartbeat": {
        "details": (1, "Details", False),
        "node": (2, "NodeReport", False),
        "containers": (3, "Replicas", False),
        "changed": (4, "Replicas", True),
        "statuses": (5, "CommandStatuses", True),
        "actions": (6, "Actions", False),
        "pipelines": (8, "PipelineReports", False),
        "layout": (9, "Layout", False),
        "queues": (10, "QueueReport", False),
    },
    "Request": {
        "kind": (1, SIGNED, False),
        "get_version": (3, "Nothing", False),
        "register": (4, "Register", False),
        "heartbeat": (5, "Heartbeat", False),
    },
}
"""What a datanode says."""

SCM: Final[dict[str, Fields]] = {
    "Uuid": DATANODE["Uuid"],
    "PipelineId": {"id": (1, BYTES, False), "uuid128": (100, "Uuid", False)},
    "Port": {"name": (1, BYTES, False), "value": (2, NUMBER, False)},
    "Peer": {
        "uuid": (1, BYTES, False),
        "ip_address": (2, BYTES, False),
        "host_name": (3, BYTES, False),
        "ports": (4, "Port", True),
        "uuid128": (100, "Uuid", False),
    },
    "KeyValue": {"key": (1, BYTES, False), "value": (2, BYTES, False)},
    "Version": {"software": (1, NUMBER, False), "keys": (2, "KeyValue", True)},
    "Registered": {
        "error": (1, SIGNED, False),
        "datanode_id": (2, BYTES, False),
        "cluster_id": (3, BYTES, False),
    },
    "DeleteTransaction": {
        "transaction_id": (1, SIGNED, False),
        "container_id": (2, SIGNED, False),
        "local_ids": (3, SIGNED, True),
    },
    "DeleteBlocks": {
        "transactions": (1, "DeleteTransaction", True),
        "command_id": (3, SIGNED, False),
    },
    "Close": {**_CONTAINER, "command_id": (3, SIGNED, False), "force": (4, BOOL, False)},
    "Delete": {
        **_CONTAINER,
        "command_id": (2, SIGNED, False),
        "force": (3, BOOL, False),
        "replica_index": (4, SIGNED, False),
    },
    "Replicate": {
        **_CONTAINER,
        "sources": (2, "Peer", True),
        "command_id": (3, SIGNED, False),
        "replica_index": (4, SIGNED, False),
        "target": (5, "Peer", False),
        "priority": (6, SIGNED, False),
    },
    "CreatePipeline": {**_ABOUT_PIPELINE, "command_id": (5, SIGNED, False)},
    "ClosePipeline": {**_ABOUT_PIPELINE, "command_id": (2, SIGNED, False)},
    "OperationalState": {
        "command_id": (1, SIGNED, False),
        "state": (2, SIGNED, False),
        "expiry_s": (3, SIGNED, False),
    },
    "Layout": DATANODE["Layout"],
    "FinalizeLayout": {
        "finalize": (1, BOOL, False),
        "layout": (2, "Layout", False),
        "command_id": (3, SIGNED, False),
    },
    "RefreshVolumeUsage": {"command_id": (1, SIGNED, False)},
    "Source": {"peer": (1, "Peer", False), "replica_index": (2, SIGNED, False)},
    "Coding": {
        "data": (1, SIGNED, False),
        "parity": (2, SIGNED, False),
        "codec": (3, BYTES, False),
        "cell_bytes": (4, SIGNED, False),
    },
    "Reconstruct": {
        **_CONTAINER,
        "sources": (2, "Source", True),
        "targets": (3, "Peer", True),
        "missing": (4, BYTES, False),
        "coding": (5, "Coding", False),
        "command_id": (6, SIGNED, False),
    },
    "Reconcile": {**_CONTAINER, "peers": (2, "Peer", True)},
    "Nothing": {},
    "Command": {
        "type": (1, SIGNED, False),
        "reregister": (2, "Nothing", False),
        "delete_blocks": (3, "DeleteBlocks", False),
        "close": (4, "Close", False),
        "delete": (5, "Delete", False),
        "replicate": (6, "Replicate", False),
        "create_pipeline": (7, "CreatePipeline", False),
        "close_pipeline": (8, "ClosePipeline", False),
        "set_operational_state": (9, "OperationalState", False),
        "finalize_layout": (10, "FinalizeLayout", False),
        "refresh_volume_usage": (11, "RefreshVolumeUsage", False),
        "reconstruct": (12, "Reconstruct", False),
        "reconcile": (13, "Reconcile", False),
        "term": (15, SIGNED, False),
        "deadline_ms": (17, SIGNED, False),
    },
    "Beaten": {
        "datanode_id": (1, BYTES, False),
        "commands": (2, "Command", True),
        "term": (3, SIGNED, False),
    },
    "Response": {
        "kind": (1, SIGNED, False),
        "success": (3, BOOL, False),
        "message": (4, BYTES, False),
        "status": (5, SIGNED, False),
        "get_version": (6, "Version", False),
        "register": (7, "Registered", False),
        "heartbeat": (8, "Beaten", False),
    },
}
"""What the storage container manager says."""

_DATANODE: Final = message_classes("suture.ozone.led.datanode", DATANODE)
DETAILS: Final = _DATANODE["Details"]
EXTENDED_DETAILS: Final = _DATANODE["ExtendedDetails"]
LAYOUT: Final = _DATANODE["Layout"]
NODE_REPORT: Final = _DATANODE["NodeReport"]
REPLICA: Final = _DATANODE["Replica"]
REPLICAS: Final = _DATANODE["Replicas"]
PIPELINE_REPORTS: Final = _DATANODE["PipelineReports"]
QUEUE_REPORT: Final = _DATANODE["QueueReport"]
COMMAND_STATUS: Final = _DATANODE["CommandStatus"]
COMMAND_STATUSES: Final = _DATANODE["CommandStatuses"]
REGISTER: Final = _DATANODE["Register"]
ACTIONS: Final = _DATANODE["Actions"]
HEARTBEAT: Final = _DATANODE["Heartbeat"]
REQUEST: Final = _DATANODE["Request"]

_SCM: Final = message_classes("suture.ozone.led.scm", SCM)
COMMAND: Final = _SCM["Command"]
RESPONSE: Final = _SCM["Response"]
