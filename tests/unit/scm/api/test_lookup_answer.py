"""Where a key is, as the wire says it: readers spread over what promises the same."""

from scm.api.call_values import ContainerLocation, DatanodeAddress
from scm.api.responses import lookup_response
from scm.state.entities import Key


def test_lookup_answer_has_datanodes_scheme_and_equal_count() -> None:
    """One container is erasure-coded, and one has no replica."""
    key = Key("a/key", 0, 5, ())
    endpoints = (DatanodeAddress("dn2", "host:2"), DatanodeAddress("dn1", "host:1"))

    answer = lookup_response(
        key, [ContainerLocation(7, endpoints, "RS-3-2-1024k", 2), ContainerLocation(8, (), "", 0)]
    )

    assert ("a/key", 5) == (answer.key.key, answer.key.created_at_ms)
    assert [(7, "RS-3-2-1024k", 2), (8, "", 0)] == [
        (one.container_id, one.scheme, one.equal_count) for one in answer.containers
    ]
    assert [[("dn2", "host:2"), ("dn1", "host:1")], []] == [
        [(replica.datanode_id, replica.address) for replica in one.replicas]
        for one in answer.containers
    ]
