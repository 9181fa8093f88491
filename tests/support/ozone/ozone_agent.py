"""An agent's server for Ozone's protocol over a real store, on a free port of loopback, and a
client.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import grpc

from agent.config.options import AgentConfig, StorageConfig
from agent.host.protocol_servers import HostServices
from agent.host.recovering_replicas import RecoveringReplicas
from agent.services.limits import DatanodeServerLimits
from merkle.checksum import Algorithm
from merkle.replica import ContainerId
from ozone.clients.datanode_messages import XCEIVER
from ozone.datanode_server.grpc_server import bound_server, built_service
from ozone.datanode_server.xceiver_service import VerifyToken, accept_any
from ozone.transfer.messages import SERVICE
from ozone.wiring import archives
from suture.runtime.clock import SystemClock
from suture.runtime.memory import UNLIMITED, MemoryBudget
from suture.wire.security.tls import LOOPBACK_ONLY
from suture.wire.server.blocked_calls import BlockedCalls, UnlimitedSlots
from suture.wire.server.connections import Connections
from tests.support.ozone.ozone_wire import COMMANDS, RESULTS, WIRE
from tests.support.storage.stored_replica import CONTAINER, DATANODE, StoredReplica

SEND = "/hadoop.hdds.datanode.XceiverClientProtocolService/send"
UPLOAD = "/hadoop.hdds.datanode.IntraDatanodeProtocolService/upload"
DOWNLOAD = "/hadoop.hdds.datanode.IntraDatanodeProtocolService/download"
MiB = 1024**2


class Actions:
    """An audit log in memory, for tests to read."""

    path = None

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, object]]] = []

    def record(self, action: str, result: str, **facts: object) -> None:
        """Keep one action."""
        self.lines.append((action, result, facts))


class OzoneAgent:
    """A store below `path`, and the server for Ozone's protocol."""

    def __init__(
        self,
        path: Path,
        *,
        algorithm: Algorithm = Algorithm.XXH3_64,
        reserve_bytes: int = 0,
        memory: MemoryBudget = UNLIMITED,
        verify: VerifyToken = accept_any,
        **limits: Any,
    ) -> None:
        self.replica = StoredReplica(path, algorithm=algorithm, reserve_bytes=reserve_bytes)
        self.audit = Actions()
        self._memory = memory
        self.scans: list[ContainerId] = []
        self.limits = DatanodeServerLimits(lease_timeout_s=2.0, **limits)
        self._executor = ThreadPoolExecutor(8)
        self.recoveries = RecoveringReplicas(
            self.replica.store,
            self.replica.leases,
            SystemClock(),
            timeout_s=300,
            scan=self.scans.append,
        )
        inside = self.inside(algorithm)
        services = {XCEIVER: built_service(inside, verify), SERVICE: archives(inside)}
        self.door = bound_server(inside, "127.0.0.1:0", services, LOOPBACK_ONLY)
        self.address = self.door.address
        self.door.server.start()

    def inside(self, algorithm: Algorithm) -> HostServices:
        """Return the components of the agent that the server uses."""
        return HostServices(
            config=AgentConfig(
                storage=StorageConfig(volumes=[self.replica.path], tree_algorithm=algorithm)
            ),
            store=self.replica.store,
            leases=self.replica.leases,
            recoveries=self.recoveries,
            limits=self.limits,
            waits=BlockedCalls(self.limits.rpc_count_max),
            slots=UnlimitedSlots(),
            memory=self._memory,
            connections=Connections(self.limits.connections_max),
            audit=self.audit,
            executor=self._executor,
            submit=self._executor.submit,
            on_read=lambda _: None,
            request_scan=lambda container_id, _: self.scans.append(container_id),
        )

    def close(self) -> None:
        """Stop serving and close the store."""
        self.door.server.stop(0).wait()
        self._executor.shutdown()
        self.replica.close()


class OzoneClient:
    """Sends requests as Ozone's clients do, by default each in its own stream."""

    def __init__(self, address: str, datanode_id: str = DATANODE) -> None:
        self._channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.max_receive_message_length", 40 * MiB),
                ("grpc.max_send_message_length", 200 * MiB),
            ],
        )
        self._datanode_id = datanode_id
        self.address = address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def request(self, command: str, container_id: int = CONTAINER, /, **body: Any) -> bytes:
        """Return the bytes of a request."""
        message = WIRE["Request"](
            cmdType=COMMANDS[command],
            containerID=container_id,
            datanodeUuid=self._datanode_id,
            **({command: body} if command in WIRE["Request"].DESCRIPTOR.fields_by_name else {}),
        )
        data: bytes = message.SerializeToString()
        return data

    def send(self, *requests: bytes) -> list[Any]:
        """Return all answers of one stream."""
        call: Any = self._channel.stream_stream(SEND)
        return [WIRE["Response"].FromString(data) for data in call(iter(requests), timeout=20)]

    def upload(self, container_id: int, *parts: bytes, **first: int) -> None:
        """Send the archive of a container in these parts. Raise RpcError if the call fails."""
        messages = []
        position = 0
        for part in parts:
            about = {"containerID": container_id, "offset": position, "data": part}
            messages.append(WIRE["Upload"](**about, **(first if not position else {})))
            position += len(part)
        self.upload_messages(messages)

    def upload_messages(self, messages: Sequence[Any]) -> None:
        """Send upload messages, which may be invalid, in one call. Raise RpcError if it fails."""
        call: Any = self._channel.stream_unary(UPLOAD)
        call(iter([message.SerializeToString() for message in messages]), timeout=20)

    def download(self, container_id: int, compression: int = 1) -> list[Any]:
        """Return the parts of a container's archive. Raise RpcError if the call fails."""
        call: Any = self._channel.unary_stream(DOWNLOAD)
        wish = WIRE["Wish"](containerID=container_id, readOffset=0, compression=compression)
        answers = call(wish.SerializeToString(), timeout=20)
        return [WIRE["Part"].FromString(data) for data in answers]

    def ask(self, command: str, container_id: int = CONTAINER, /, **body: Any) -> Any:
        """Send one request; return the answer."""
        (answer,) = self.send(self.request(command, container_id, **body))
        return answer

    def result(self, command: str, container_id: int = CONTAINER, /, **body: Any) -> str:
        """Send one request; return Ozone's name of the result code."""
        return RESULTS[self.ask(command, container_id, **body).result]


@contextmanager
def served(path: Path, **options: Any) -> Iterator[tuple[OzoneAgent, OzoneClient]]:
    """Run an `OzoneAgent`; yield it with a client of its server."""
    agent = OzoneAgent(path, **options)
    try:
        with OzoneClient(agent.address) as client:
            yield agent, client
    finally:
        agent.close()


def block_id(local_id: int, container_id: int = CONTAINER, **more: int) -> dict[str, int]:
    """Return Ozone's message for a block id."""
    return {"containerID": container_id, "localID": local_id, **more}
