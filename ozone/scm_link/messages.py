"""Messages between a datanode and Ozone's storage container manager (SCM).

The formats are defined in `proto/ozone/messages/led_datanode.proto` and `led_scm.proto`. A test
compares each field with Ozone's own classes.
"""

from enum import IntEnum
from typing import Any, Final

from ozone.messages import led_datanode_pb2, led_scm_pb2

PROTOCOL: Final = "org.apache.hadoop.ozone.protocol.StorageContainerDatanodeProtocol"
PROTOCOL_VERSION: Final = 1
METHOD: Final = "submitRequest"
OK: Final = 1  # Status
REGISTERED: Final = 1  # ErrorCode
NOT_PERMITTED: Final = 2  # returned only for another layout version
EXECUTED: Final = 2  # CommandStatus.Status
FAILED: Final = 3
DISK: Final = 1  # StorageTypeProto
LOW: Final = 2  # ReplicationCommandPriority
CLOSE: Final = 1  # ContainerAction.Action
FULL: Final = 1  # ContainerAction.Reason


class DatanodeRequestType(IntEnum):
    """Types of the requests that a datanode sends."""

    GET_VERSION = 1
    REGISTER = 2
    HEARTBEAT = 3


class ScmCommandType(IntEnum):
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
    """States of a replica in reports (ContainerReplicaProto.State).

    Replicas in state RECOVERING are not reported.
    """

    OPEN = 1
    CLOSING = 2
    QUASI_CLOSED = 3
    CLOSED = 4
    UNHEALTHY = 5
    DELETED = 7


class NodeOperationalState(IntEnum):
    """The operational state of a datanode in the SCM (NodeOperationalState)."""

    IN_SERVICE = 1
    ENTERING_MAINTENANCE = 2
    IN_MAINTENANCE = 3
    DECOMMISSIONING = 4
    DECOMMISSIONED = 5


DETAILS: Final[Any] = led_datanode_pb2.Details
EXTENDED_DETAILS: Final[Any] = led_datanode_pb2.ExtendedDetails
LAYOUT: Final[Any] = led_datanode_pb2.Layout
NODE_REPORT: Final[Any] = led_datanode_pb2.NodeReport
REPLICA: Final[Any] = led_datanode_pb2.Replica
REPLICAS: Final[Any] = led_datanode_pb2.Replicas
PIPELINE_REPORTS: Final[Any] = led_datanode_pb2.PipelineReports
QUEUE_REPORT: Final[Any] = led_datanode_pb2.QueueReport
COMMAND_STATUS: Final[Any] = led_datanode_pb2.CommandStatus
COMMAND_STATUSES: Final[Any] = led_datanode_pb2.CommandStatuses
REGISTER: Final[Any] = led_datanode_pb2.Register
ACTIONS: Final[Any] = led_datanode_pb2.Actions
HEARTBEAT: Final[Any] = led_datanode_pb2.Heartbeat
REQUEST: Final[Any] = led_datanode_pb2.Request

COMMAND: Final[Any] = led_scm_pb2.Command
PEER: Final[Any] = led_scm_pb2.Peer
RESPONSE: Final[Any] = led_scm_pb2.Response
