"""A real gRPC server in the role of the SCM. It sends the commands that a test adds, and keeps the
messages that it receives.
"""

import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter

import grpc

from suture.wire.mapping.rpc_services import SCM
from suture.wire.v1 import scm_pb2
from tests.support import waiting
from tests.support.wire.served import add_service

CLUSTER_ID = "CID-11111111-2222-4333-8444-555555555555"


class ScriptedScm:
    """Answers registrations and heartbeats. Tests add commands and wait for their outcomes."""

    def __init__(self, heartbeat_interval_ms: int = 50, cluster_id: str = CLUSTER_ID) -> None:
        self.cluster_id = cluster_id
        self.interval_ms = heartbeat_interval_ms
        self.changed = threading.Condition()
        self.commands: deque[scm_pb2.Command] = deque()
        self.statuses: dict[int, scm_pb2.CommandStatus] = {}
        self.replicas: set[tuple[str, int]] = set()  # (datanode, container)
        self.heartbeats = 0
        self.heard: deque[scm_pb2.HeartbeatRequest] = deque(maxlen=1_000)
        self.pages: list[scm_pb2.ColumnReport] = []
        self.nodes: list[scm_pb2.NodeInfo] = []
        self.term = 1
        self.reregister = False  # with the next answer
        self.start_id, self.state_number = "", 0
        self.clock_lag_ms = 0
        self.seen_starts: list[scm_pb2.SeenStart] = []
        self.registrations: list[scm_pb2.RegisterRequest] = []
        self.op_states: list[tuple[str, int]] = []
        self.server = grpc.server(ThreadPoolExecutor(4))
        add_service(self.server, SCM, self)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> "ScriptedScm":
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop(None).wait()

    def ListNodes(
        self, _request: scm_pb2.ListNodesRequest, _context: grpc.ServicerContext
    ) -> scm_pb2.ListNodesResponse:
        """Answer from the script."""
        return scm_pb2.ListNodesResponse(cluster_id=self.cluster_id, nodes=self.nodes)

    def Register(
        self, request: scm_pb2.RegisterRequest, _context: grpc.ServicerContext
    ) -> scm_pb2.RegisterResponse:
        """Answer from the script."""
        with self.changed:
            self.registrations.append(request)
            self.changed.notify_all()
        return scm_pb2.RegisterResponse(
            cluster_id=self.cluster_id, heartbeat_interval_ms=self.interval_ms
        )

    def Heartbeat(
        self, request: scm_pb2.HeartbeatRequest, _context: grpc.ServicerContext
    ) -> scm_pb2.HeartbeatResponse:
        """Answer from the script."""
        with self.changed:
            self.heartbeats += 1
            self.heard.append(request)
            self.pages.extend(request.column_reports)
            self.seen_starts = list(request.seen_starts)
            self.op_states.append((request.op_state, request.op_expiry_ms))
            for status in request.command_statuses:
                self.statuses[status.command_id] = status
            ids = [replica.container_id for one in request.reports for replica in one.replicas]
            for page in request.column_reports:
                ids += map(itemgetter(0), struct.iter_unpack("<Q", page.replicas.container_id))
            self.replicas.update((request.datanode_id, container_id) for container_id in ids)
            commands = list(self.commands)
            self.commands.clear()
            reregister, self.reregister = self.reregister, False
            self.changed.notify_all()
        return scm_pb2.HeartbeatResponse(
            reregister=reregister,
            term=self.term,
            commands=commands,
            start_id=self.start_id,
            state_number=self.state_number,
            answered_at_ms=time.time_ns() // 1_000_000 - self.clock_lag_ms,
        )

    def order(self, command: scm_pb2.Command) -> None:
        """Send a command with the next heartbeat."""
        with self.changed:
            self.commands.append(command)

    def order_all(self, commands: Sequence[scm_pb2.Command]) -> None:
        """Send many commands with one heartbeat."""
        with self.changed:
            self.commands.extend(commands)

    def withdraw(self) -> None:
        """Remove commands that no datanode has fetched."""
        with self.changed:
            self.commands.clear()

    def wait_until(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until a condition about the received messages is true; return whether it became
        true."""
        with self.changed:
            return self.changed.wait_for(condition, timeout_s or 2 * waiting.WAIT_S)

    def wait_for(
        self, command_id: int, timeout_s: float | None = None
    ) -> scm_pb2.CommandStatus | None:
        """Wait for a command's outcome; return None if none arrived."""
        with self.changed:
            self.wait_until(lambda: command_id in self.statuses, timeout_s)
            return self.statuses.get(command_id)
