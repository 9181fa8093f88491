"""A channel of ours: methods of generated stubs work over it, and are not registered with gRPC."""

from typing import Any

import pytest

from suture.wire.clients.unregistered_channel import UnregisteredChannel
from suture.wire.v1 import datanode_pb2_grpc

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class Noting:
    """Stands in for gRPC's channel: notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: self.asked.append((name, arguments, options))


@pytest.mark.parametrize("kind", KINDS)
def test_methods_are_asked_for_as_they_are_but_are_not_registered(kind: str) -> None:
    """This holds for every kind of method. All other options are passed on."""
    within: Any = Noting()

    getattr(UnregisteredChannel(within), kind)(
        "/a/Do", 1, response_deserializer=2, _registered_method=True
    )

    assert [(kind, ("/a/Do", 1), {"response_deserializer": 2})] == within.asked


def test_no_method_of_a_generated_stub_is_registered() -> None:
    """
    Generated code asks for each of them.
    """
    within: Any = Noting()

    datanode_pb2_grpc.DatanodeStub(UnregisteredChannel(within))

    assert len(within.asked) > 10
    assert not any("_registered_method" in options for _, _, options in within.asked)


def test_the_rest_of_a_channel_is_that_of_the_one_within() -> None:
    """The other methods are the wait for readiness and the close, also at the end of a block."""
    within: Any = Noting()
    told: Any = object()

    with UnregisteredChannel(within) as channel:
        channel.subscribe(told, try_to_connect=True)
        channel.unsubscribe(told)

    assert [
        ("subscribe", (told, True), {}), ("unsubscribe", (told,), {}), ("close", (), {})
    ] == within.asked  # fmt: skip
