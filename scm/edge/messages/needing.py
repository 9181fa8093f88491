"""Converts the keys that need given containers to their response."""

from agent.rpc.v1 import scm_pb2
from scm.administration.affected_keys import KeyPage


def page_message(page: KeyPage) -> scm_pb2.ListContainerKeysResponse:
    """Return a page of keys."""
    return scm_pb2.ListContainerKeysResponse(
        keys=[
            scm_pb2.ContainerKey(
                key=one.name, size=one.size_bytes, container_ids=sorted(one.container_ids)
            )
            for one in page.keys
        ],
        next_start_after=page.next_start_after,
        key_count=page.key_count,
        container_count=page.container_count,
    )
