"""Limits of the gRPC server of a datanode: number of calls, waiting times, sizes of pages."""

from dataclasses import dataclass

from suture.wire.server.limited_server import ServerLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class DatanodeServerLimits(ServerLimits):
    """Limits of the gRPC server of a datanode."""

    rpc_count_max: int = 64
    streams_max: int = 64
    connections_max: int = 1_000
    lease_timeout_s: float = 30.0  # longest wait for the lease of a container
    replicas_page_max: int = 1_000
    blocks_page_max: int = 1_000
    findings_page_max: int = 1_000
