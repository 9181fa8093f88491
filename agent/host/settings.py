"""Functions that compute the settings of the agent's parts from the config."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agent.config.options import AgentConfig
from agent.services.limits import DatanodeServerLimits
from agent.store.options import StoreOptions
from suture.runtime.call_thread_pool import CallThreadPool
from suture.runtime.clock import SystemClock
from suture.runtime.memory import MemoryBudget, in_flight_bytes, limit_bytes
from suture.wire.server.descriptors import connections_that_fit

CALLS_PER_THREAD: Final = 10  # admitted calls per thread; further calls are refused as BUSY
STREAMS_MAX: Final = 100  # running calls per connection; the caller delays further calls


def web_names(config: AgentConfig) -> Sequence[str]:
    """Return the host names that the HTTP header Host of a request for the status page may
    contain."""
    return (*config.observe.names, (config.node.advertise or "").rpartition(":")[0])


def call_threads(config: AgentConfig) -> CallThreadPool:
    """Return a new thread pool for incoming calls."""
    return CallThreadPool(config.server.threads, CALLS_PER_THREAD * config.server.threads)


def server_limits(config: AgentConfig, *, server_count: int = 1) -> DatanodeServerLimits:
    """Return the limits of each server, computed from the config and the limit of open files."""
    server = config.server
    return DatanodeServerLimits(
        rpc_count_max=CALLS_PER_THREAD * server.threads,
        streams_max=STREAMS_MAX,
        connections_max=connections_that_fit(server.connections_max, server_count=server_count),
        calls_per_s_max=server.calls_per_s_max,
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """Separate memory budgets for calls, tasks and scans.

    One common budget could cause a deadlock: a task holds memory while it waits for calls of peers
    and for the scan after its repair, and these need memory, too.
    """

    calls: MemoryBudget
    tasks: MemoryBudget
    scans: MemoryBudget


def memory_of(config: AgentConfig) -> Memory:
    """Return the memory budgets. Their total is set in the config, or computed from the machine's
    memory."""
    total_bytes = in_flight_bytes(config.node.in_flight_bytes, limit_bytes())
    return Memory(
        MemoryBudget(total_bytes // 2),
        MemoryBudget(total_bytes * 3 // 8),
        MemoryBudget(total_bytes // 8),
    )


def store_options(config: AgentConfig, clock: SystemClock, software: str = "") -> StoreOptions:
    """Return the options of the store, taken from the config. `software` is the version of the
    agent."""
    storage = config.storage
    return StoreOptions(
        algorithm=storage.tree_algorithm,
        container_bytes_max=storage.container_bytes_max,
        reserve_bytes=storage.reserve_bytes,
        verification_keep_ms=int(storage.verification_keep_s * 1000),
        software=software,
        now_ms=clock.now_ms,
    )
