"""A service is put together from groups of handlers: each call is in one of them."""

import pytest

from agent.services.admin_handlers import AdminHandlers
from agent.services.import_handlers import ImportHandlers
from agent.services.proof_handlers import ProofHandlers
from agent.services.read_handlers import ReadHandlers
from agent.services.scan_handlers import ScanHandlers
from agent.services.server import CALLS, codecs_of, composed
from agent.services.trust_handlers import TrustHandlers
from agent.services.write_handlers import WriteHandlers
from suture.wire.v1 import datanode_pb2 as pb

GROUPS = (
    *(ReadHandlers, WriteHandlers, ImportHandlers),
    *(ScanHandlers, TrustHandlers, AdminHandlers, ProofHandlers),
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
    handled = [call for group in GROUPS for call in CALLS if hasattr(group, call)]

    assert sorted(CALLS) == sorted(handled)


def test_a_call_goes_to_its_group() -> None:
    """
    The service answers what the group answers.
    """
    service = composed([AdminHandlers(status)])

    answer = service.Status(pb.StatusRequest(), None)

    assert status() == answer


def test_two_groups_with_the_same_call_are_a_mistake() -> None:
    """The order of the groups does not decide which handler answers."""
    with pytest.raises(AssertionError, match="Status is in"):
        composed([AdminHandlers(status), AdminHandlers(status)])


def test_a_group_that_decodes_its_requests_itself_is_asked() -> None:
    """
    The parts of a replica are too large to be decoded as other requests are.
    """
    group = ImportHandlers(Importing())  # type: ignore[arg-type]  # it receives nothing

    assert ["/suture.v1.Datanode/ImportContainer"] == list(codecs_of([group], "decoders"))
    assert b"part" == codecs_of([group], "decoders")["/suture.v1.Datanode/ImportContainer"](b"part")
