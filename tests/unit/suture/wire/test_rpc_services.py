"""Stubs and method handlers of services, built from the descriptors of proto/."""

from typing import Any

import pytest

from agent.services.admin_handlers import AdminHandlers
from agent.services.import_handlers import ImportHandlers
from agent.services.proof_handlers import ProofHandlers
from agent.services.read_handlers import ReadHandlers
from agent.services.scan_handlers import ScanHandlers
from agent.services.trust_handlers import TrustHandlers
from agent.services.write_handlers import WriteHandlers
from suture.wire.mapping.rpc_services import DATANODE, SCM, Stub, method_handlers
from suture.wire.server.audit_handlers import AuditHandlers
from suture.wire.v1 import datanode_pb2 as pb
from suture.wire.v1 import scm_pb2

GROUPS = (
    *(ReadHandlers, WriteHandlers, ImportHandlers),
    *(ScanHandlers, TrustHandlers, AdminHandlers, ProofHandlers, AuditHandlers),
)


class Importing:
    """Takes nothing, and decodes its requests itself."""

    def read_part(self, encoded: bytes) -> bytes:
        """Pass on the bytes."""
        return encoded

    def receive(self, parts: object) -> None:
        """Take none."""
        raise AssertionError(parts)


def status() -> pb.StatusResponse:
    """Return a name to know the answer by."""
    return pb.StatusResponse(datanode_id="dn1")


def test_every_call_of_the_service_is_in_one_handler_group() -> None:
    """A new call of the protocol is not forgotten, and none is handled twice."""
    calls = DATANODE.methods_by_name

    handled = [call for group in GROUPS for call in calls if hasattr(group, call)]

    assert sorted(calls) == sorted(handled)


def test_a_call_goes_to_its_group() -> None:
    """
    The service answers what the group answers.
    """
    handlers = method_handlers(DATANODE, [AdminHandlers(status), ImportHandlers(Importing())])  # type: ignore[arg-type]

    answer = handlers["Status"].unary_unary(pb.StatusRequest(), None)

    assert status() == answer
    assert pb.StatusRequest() == handlers["Status"].request_deserializer(b"")
    assert status().SerializeToString() == handlers["Status"].response_serializer(answer)


def test_two_groups_with_the_same_call_are_a_mistake() -> None:
    """The order of the groups does not decide which handler answers."""
    with pytest.raises(AssertionError, match="Status is in"):
        method_handlers(DATANODE, [AdminHandlers(status), AdminHandlers(status)])


def test_a_group_that_decodes_its_requests_itself_is_asked() -> None:
    """
    The parts of a replica are too large to be decoded as other requests are.
    """
    group = ImportHandlers(Importing())  # type: ignore[arg-type]  # it receives nothing

    handlers = method_handlers(DATANODE, [group])

    assert ["ImportContainer"] == list(handlers)
    assert b"part" == handlers["ImportContainer"].request_deserializer(b"part")


class RecordingChannel:
    """Stands in for gRPC's channel: records which methods are opened and how they are called."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, str, dict[str, Any]]] = []
        self.called: list[tuple[Any, dict[str, Any]]] = []

    def __getattr__(self, kind: str) -> Any:
        def opened(path: str, **options: Any) -> Any:
            self.opened.append((kind, path, options))
            return lambda request, **call: self.called.append((request, call))

        return opened


@pytest.mark.parametrize("service", [DATANODE, SCM])
def test_stub_opens_each_rpc_once_with_its_codecs_and_does_not_register_it(service: Any) -> None:
    """The descriptor in Python, which protoc wrote, has the path, the streams and the types."""
    channel: Any = RecordingChannel()
    stub = Stub(channel, service)

    for name in service.methods_by_name:
        assert getattr(stub, name) is getattr(stub, name)

    ends = {True: "stream", False: "unary"}
    assert [
        (ends[rpc.client_streaming], ends[rpc.server_streaming], f"/{service.full_name}/{name}")
        for name, rpc in service.methods_by_name.items()
    ] == [(*kind.split("_"), path) for kind, path, _ in channel.opened]
    assert {("request_serializer", "response_deserializer")} == {
        tuple(options) for _, _, options in channel.opened
    }


def test_stub_converts_the_messages_of_an_rpc() -> None:
    """Codecs that are given replace those of the generated classes."""
    channel: Any = RecordingChannel()
    request = scm_pb2.LookupKeyRequest(key="k")

    assert Stub(channel, SCM).LookupKey
    assert Stub(channel, SCM, encoders={"LookupKey": None}, decoders={"LookupKey": len}).LookupKey

    (_, _, plain), (_, _, replaced) = channel.opened
    assert request.SerializeToString() == plain["request_serializer"](request)
    assert scm_pb2.LookupKeyResponse() == plain["response_deserializer"](b"")
    assert (None, len) == (replaced["request_serializer"], replaced["response_deserializer"])


def test_stub_adds_its_header_to_the_headers_of_a_call() -> None:
    """The header comes first. A call without headers has only this one."""
    channel: Any = RecordingChannel()
    stub = Stub(channel, DATANODE, header=("to", "dn1"))

    stub.Status("first", metadata=[("a", "b")], timeout=3)
    stub.Status("second")

    assert [
        ("first", {"metadata": (("to", "dn1"), ("a", "b")), "timeout": 3}),
        ("second", {"metadata": (("to", "dn1"),)}),
    ] == channel.called


def test_unknown_rpc_of_a_stub_is_an_error() -> None:
    """A misspelt name does not become a call that the server refuses."""
    channel: Any = RecordingChannel()

    with pytest.raises(AttributeError, match=r"suture\.v1\.Scm has no RPC 'Lookup'"):
        _ = Stub(channel, SCM).Lookup
