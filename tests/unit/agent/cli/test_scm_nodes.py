"""What `suture scm nodes` says of a datanode's health."""

import pytest

from agent.cli.inspect.scm_commands import health_of
from suture.wire.v1 import scm_pb2


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (scm_pb2.NodeInfo(health="HEALTHY"), "HEALTHY"),
        (scm_pb2.NodeInfo(health="STALE", unmanaged=True), "STALE, not managed"),
        (scm_pb2.NodeInfo(health="DEAD", read_only=True, unmanaged=True), "DEAD, read-only"),
    ],
)
def test_reasons_against_new_replicas_are_shown_with_the_health(
    node: scm_pb2.NodeInfo, expected: str
) -> None:
    """Otherwise a healthy datanode that gets no replicas would be a puzzle."""
    assert expected == health_of(node)
