"""Limits of one datanode's server: calls, waiting times, page sizes."""

from dataclasses import dataclass

from suture.wire.server.server_options import PATIENCE, ConnectionLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class DatanodeServerLimits:
    """Limits of one server. Calls beyond `rpc_count_max` get RESOURCE_EXHAUSTED at once."""

    rpc_count_max: int = 64
    streams_max: int = 64  # concurrent calls per connection; further calls wait or are refused
    connections_max: int = 1_000
    calls_per_s_max: int = 0  # per caller; 0 = unlimited
    patience: ConnectionLimits = PATIENCE
    lease_timeout_s: float = 30.0  # longest wait for the lease of a container
    replicas_page_max: int = 1_000
    blocks_page_max: int = 1_000
    findings_page_max: int = 1_000


def page_size(asked: int, most: int) -> int:
    """Return the number of rows of a page: as requested, at most the server's maximum."""
    return min(asked, most) if asked else most
