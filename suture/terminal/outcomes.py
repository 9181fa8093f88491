"""Fetches the outcomes of commands from the control plane, which keeps only the newest ones."""

from collections.abc import Callable, Iterator
from typing import Final

from suture.client.cluster_client import ClusterClient
from suture.wire.v1 import scm_pb2

KEPT_MAX: Final = 10_000  # the control plane's limit
Wanted = Callable[[scm_pb2.Outcome], bool]


def newest_outcomes(
    client: ClusterClient, is_wanted: Wanted, *, count: int = KEPT_MAX
) -> list[scm_pb2.Outcome]:
    """Return at most `count` outcomes for which `is_wanted` returns True, the newest first. Raise
    SutureError if a call fails."""
    found: list[scm_pb2.Outcome] = []
    for page in _pages(client):
        found += filter(is_wanted, page)
        if len(found) >= count:
            break
    return found[:count]


def outcomes_in(client: ClusterClient, container_id: int) -> list[scm_pb2.Outcome]:
    """Return the outcomes of all commands about a container, the newest first. Raise SutureError if
    a call fails."""
    return newest_outcomes(client, lambda outcome: outcome.status.container_id == container_id)


def _pages(client: ClusterClient) -> Iterator[list[scm_pb2.Outcome]]:
    """Yield lists of outcomes, the newest first, until there are no older ones."""
    oldest_id = 0
    while True:
        request = scm_pb2.ListOutcomesRequest(count=KEPT_MAX, before_command_id=oldest_id)
        page = list(client.scm.list_outcomes(request).outcomes)
        if not page:
            return
        yield page
        oldest_id = page[-1].status.command_id
