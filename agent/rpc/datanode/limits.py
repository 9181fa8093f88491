"""Bounds of one datanode's server: how many calls, how long they wait, how much is on a page."""

from dataclasses import dataclass

from agent.rpc.serving.binding import PATIENCE, Patience


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one server. Beyond `rpc_count_max` callers get RESOURCE_EXHAUSTED at once."""

    rpc_count_max: int = 64
    streams_max: int = 64  # of one connection at once; more wait at the caller, or are refused
    connections_max: int = 1_000
    calls_per_s_max: int = 0  # of one caller; 0: no limit
    patience: Patience = PATIENCE
    lease_timeout_s: float = 30.0  # how long a call waits for a container that is being changed
    replicas_page_max: int = 1_000
    blocks_page_max: int = 1_000
    findings_page_max: int = 1_000


def page_size(asked: int, most: int) -> int:
    """Return how many rows a page has: as asked, or as the server's maximum."""
    return min(asked, most) if asked else most
