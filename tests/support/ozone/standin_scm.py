"""A stand-in for Ozone's storage container manager that datanodes can join, over real sockets.

Its messages are Ozone's own: `tests/golden/ozone/datanode-protocol.desc` contains the descriptors
of the classes of Ozone 2.2.0 (a FileDescriptorSet). Therefore, the stand-in rejects a message with
a missing required field or a wrong field number. It parses the frames around the messages itself.
"""

import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.support.ozone.hadoop_server import (
    GREETING,
    NO_ACCESS,
    HadoopServer,
    call_of,
    delimited,
    exactly,
    failure,
    fields_of,
    frame_of,
    framed,
    number_field,
    varint,
)

DESCRIPTORS = Path(__file__).resolve().parents[2] / "golden" / "ozone" / "datanode-protocol.desc"
PROTOCOL = b"org.apache.hadoop.ozone.protocol.StorageContainerDatanodeProtocol"
CLUSTER_ID = "CID-11111111-2222-3333-4444-555555555555"
SCM_ID = "99999999-2222-3333-4444-555555555555"
LAYOUT_VERSION = 10
PIPELINE = "12345678-2222-3333-4444-555555555555"


def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.Add(file)  # type: ignore[no-untyped-call]
    return pool


POOL = _pool()


def _classes(descriptors: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for descriptor in descriptors:
        yield descriptor.full_name, message_factory.GetMessageClass(descriptor)
        yield from _classes(descriptor.nested_types)


CLASSES = dict(
    _classes(
        message
        for name in ("hdds.proto", "ScmServerDatanodeHeartbeatProtocol.proto")
        for message in POOL.FindFileByName(name).message_types_by_name.values()
    )
)
"""All message classes by full name, created at the import. protobuf would otherwise create classes
on demand, and could delete and recreate them while another thread reads a message."""


def ozone(name: str) -> Any:
    """Return Ozone's class of a message, by its name in the package hadoop.hdds."""
    return CLASSES[f"hadoop.hdds.{name}"]


REQUEST = ozone("SCMDatanodeRequest")
RESPONSE = ozone("SCMDatanodeResponse")
COMMAND = ozone("SCMCommandProto")


def command(kind: str, payload: dict[str, Any], *, term: int = 1, deadline_ms: int = 0) -> Any:
    """Return a command. `kind` is the name in SCMCommandProto.Type without its suffix "Command"."""
    name = kind if kind == "refreshVolumeUsageInfo" else f"{kind}Command"
    part = {
        "refreshVolumeUsageInfo": "refreshVolumeUsageCommandProto",
        "reconstructECContainers": "reconstructECContainersCommandProto",
    }.get(kind, f"{kind}CommandProto")
    built = COMMAND(commandType=name, term=term, **{part: payload})
    if deadline_ms:
        built.deadlineMsSinceEpoch = deadline_ms
    return built


@dataclass
class StandInScm(HadoopServer):
    """A server on its own port, with one thread per connection."""

    cluster_id: str = CLUSTER_ID
    term: int | None = 1
    """Term of the leader. If it is None, this manager is a follower and reports no term."""
    lets_in: bool = True
    knows_all: bool = False
    """True if datanodes that did not register count as known."""
    spoil: Callable[[bytes], bytes] | None = None
    """Function that changes the bytes of each answer, including its length prefix. After a changed
    answer, the connection ends."""
    registers: list[Any] = field(default_factory=list)
    beats: list[Any] = field(default_factory=list)
    commands: deque[Any] = field(default_factory=deque)
    """Commands for the answer to the next heartbeat."""
    known: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    """Descriptions of messages that a real manager would have rejected."""

    def __post_init__(self) -> None:
        self.listen()

    # received messages

    def statuses(self) -> list[Any]:
        """Return all received outcomes of commands."""
        return [
            status
            for beat in list(self.beats)
            for report in beat.commandStatusReports
            for status in report.cmdStatus
        ]

    def replicas(self) -> dict[int, Any]:
        """Return the last report of each replica since the last registration."""
        found: dict[int, Any] = {}
        if self.registers:
            found = {one.containerID: one for one in self.registers[-1].containerReport.reports}
        for beat in list(self.beats):
            if beat.HasField("containerReport"):
                found = {one.containerID: one for one in beat.containerReport.reports}
            for changed in beat.incrementalContainerReport:
                found.update((one.containerID, one) for one in changed.report)
        return found

    # serving

    def serve(self, opened: socket.socket, stream: Any) -> None:
        """Answer calls until the datanode ends the connection."""
        assert GREETING == exactly(stream, len(GREETING))
        header, rest = call_of(frame_of(stream))
        context = fields_of(delimited(rest)[0])
        if (5, PROTOCOL) != (header[3], context[3]):
            self.faults.append(f"context {context}")
        if not self.lets_in:
            said = "SIMPLE authentication is not enabled."
            opened.sendall(framed(failure(-3, NO_ACCESS, said, status=2, detail=15)))
            return
        while True:
            answer = self._answer(frame_of(stream))
            if self.spoil is not None:
                opened.sendall(self.spoil(answer))
                return
            opened.sendall(answer)

    def _answer(self, frame: bytes) -> bytes:
        header, rest = call_of(frame)
        zigzag = header[3]
        assert isinstance(zigzag, int)
        method, rest = delimited(rest)
        body, _ = delimited(rest)
        said = fields_of(method)
        if (b"submitRequest", PROTOCOL, 1) != (said[1], said[2], said[3]):
            self.faults.append(f"method {said}")
        data = self._answered(REQUEST.FromString(body)).SerializeToString()
        head = number_field(1, zigzag >> 1) + number_field(2, 0) + number_field(3, 9)
        return framed(varint(len(head)) + head + varint(len(data)) + data)

    def _answered(self, request: Any) -> Any:
        response = RESPONSE(cmdType=request.cmdType, status="OK", success=True)
        match request.cmdType:
            case 1:
                version = response.getVersionResponse
                version.softwareVersion = 1
                version.keys.add(key="clusterID", value=self.cluster_id)
                version.keys.add(key="scmUuid", value=SCM_ID)
            case 2:
                self._register(request.registerRequest, response.registerResponse)
            case 3:
                self._beat(request.sendHeartbeatRequest, response.sendHeartbeatResponse)
        return response

    def _register(self, request: Any, answer: Any) -> None:
        self.registers.append(_own(request))
        uuid = request.extendedDatanodeDetails.datanodeDetails.uuid
        fits = request.dataNodeLayoutVersion.softwareLayoutVersion == LAYOUT_VERSION
        answer.errorCode = "success" if fits else "errorNodeNotPermitted"
        answer.datanodeUUID, answer.clusterID = uuid, self.cluster_id
        if fits:
            self.known.add(uuid)

    def _beat(self, request: Any, answer: Any) -> None:
        uuid = request.datanodeDetails.uuid
        answer.datanodeUUID = uuid
        if self.term is not None:
            answer.term = self.term
        if uuid not in self.known and not self.knows_all:
            answer.commands.append(command("reregister", {}, term=self.term or 0))
        while self.commands:
            answer.commands.append(self.commands.popleft())
        self.beats.append(_own(request))


@contextmanager
def standin_scm(**wishes: Any) -> Iterator[StandInScm]:
    """Run a `StandInScm` with these fields, and yield it. Fail at the end if it rejected a
    message."""
    server = StandInScm(**wishes)
    try:
        yield server
    finally:
        server.close()
    assert [] == server.faults


def _own(message: Any) -> Any:
    """Return a copy of a message, so that another thread may read it."""
    return type(message).FromString(message.SerializeToString())
