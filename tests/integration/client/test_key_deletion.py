"""Deletes whose answers are lost: by `suture.Client` and `suture rm`, of a served control plane."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import grpc
import pytest

from scm.api.server import build_server
from scm.api.service import ScmService
from suture import Client, KeyNotFound
from suture.errors import Code, UnavailableError
from suture.wire.clients.channel import open_channel
from suture.wire.mapping.rpc_services import SCM, Stub
from suture.wire.v1 import scm_pb2
from tests.support.command_line import CommandLine
from tests.support.control.scm_world import ScmWorld

NODES = ("dn1", "dn2", "dn3")


def nothing(*_: object) -> None:
    """Let nothing happen."""


class LosingScm(ScmService):
    """A control plane that does what it is asked to, and then loses answers to deletes, as one does
    that dies when the change is durable and is started again."""

    losses_left = 0
    asked_count = 0

    def __init__(self, world: ScmWorld) -> None:
        """Serve a control plane that is not started for this."""
        super().__init__(world.control)
        self.began: Callable[[grpc.ServicerContext], object] = nothing
        self.before: Callable[[], object] = nothing
        self.meanwhile: Callable[[], object] = nothing
        self.ended = Event()

    def DeleteKeys(
        self, request: scm_pb2.DeleteKeysRequest, context: grpc.ServicerContext
    ) -> scm_pb2.DeleteKeysResponse:
        """Delete, let happen what happens meanwhile, and lose the answer."""
        if not request.dry_run:
            self.asked_count += 1
            self.before()
        self.began(context)
        try:
            answer = super().DeleteKeys(request, context)
        finally:
            self.ended.set()
        if self.losses_left and not request.dry_run:
            self.losses_left -= 1
            self.meanwhile()
            raise UnavailableError(Code.UNAVAILABLE, "the answer is lost")
        return answer


class Served:
    """A control plane that is called over loopback."""

    def __init__(self, world: ScmWorld, service: LosingScm, address: str) -> None:
        self.world = world
        self.service = service
        self.address = address

    @property
    def names(self) -> list[str]:
        """The keys there are."""
        return sorted(key.name for key in self.world.state.keys.values())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """One with the key `k`, of which answers are not lost yet."""
    with ScmWorld(tmp_path).running() as world, ThreadPoolExecutor(8) as executor:
        world.join(*NODES)
        world.write("a", "k", 10)
        service = LosingScm(world)
        built = build_server(service, "127.0.0.1:0", executor)
        built.server.start()
        try:
            yield Served(world, service, built.address)
        finally:
            built.server.stop(0).wait()


def test_a_delete_whose_answer_is_lost_succeeds(served: Served) -> None:
    """The first attempt deleted the key, so "no such key" is the second attempt's success."""
    served.service.losses_left = 2

    with Client(served.address) as client:
        client.delete("k")

    assert [] == served.names
    assert 3 == served.service.asked_count


def test_retried_delete_keeps_a_key_stored_again_meanwhile(served: Served) -> None:
    """The second attempt must not delete a key whose storing was acknowledged after the first
    attempt.
    """
    served.service.losses_left = 1
    served.service.meanwhile = lambda: served.world.write("b", "k", 20)

    with Client(served.address) as client:
        client.delete("k")

    assert [20] == [key.size_bytes for key in served.world.state.keys.values()]


def test_delete_of_a_key_that_others_deleted_raises_key_not_found(served: Served) -> None:
    """If two clients delete a key, only one of them succeeds."""
    served.service.before = lambda: served.world.control.deletions.delete_keys(["k"], dry_run=False)

    with Client(served.address) as client, pytest.raises(KeyNotFound, match="no such key: k"):
        client.delete("k")


def test_rm_says_what_was_deleted_whichever_try_it_was(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is one line for each key, in the given order, and the exit code is that of a
    success.
    """
    served.world.write("a", "l", 30)
    served.service.losses_left = 1

    document = CommandLine(served.address, capsys).json("rm", "--yes", "l", "k", "l")["deletions"]

    assert [("l", "OK", 30), ("k", "OK", 10)] == [
        (one["key"], one["code"], one["size"]) for one in document
    ]
    assert [] == served.names


def test_rm_names_what_was_never_there(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """The missing key is listed beside the deleted ones, and the exit code reports it."""
    document = CommandLine(served.address, capsys).json("rm", "--yes", "nope", "k", code=1)[
        "deletions"
    ]

    assert ["KEY_NOT_FOUND", "OK"] == [one["code"] for one in document]
    assert [] == served.names


def test_cancelled_delete_that_waits_for_the_lock_deletes_nothing(served: Served) -> None:
    """The caller of a call that waited for the lock has often retried since."""
    entered, gone = Event(), Event()

    def began(context: grpc.ServicerContext) -> None:
        context.add_callback(gone.set)
        entered.set()

    served.service.began = began
    with open_channel(served.address) as channel:
        stub = Stub(channel, SCM)
        with served.world.control.access.lock:
            call = stub.DeleteKeys.future(scm_pb2.DeleteKeysRequest(keys=["k"]))
            assert entered.wait(60)
            call.cancel()
            assert gone.wait(60)
        served.service.ended.wait(60)

    assert ["k"] == served.names
