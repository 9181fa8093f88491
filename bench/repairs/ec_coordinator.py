"""One reconstruction in a process of its own: prints what it read and the memory it took."""

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agent.ec.rebuild_task import Order, Shard
from agent.ec.scheme import parse_scheme
from agent.reconstruct.coordinator import Coordinator
from agent.rpc.calls.peer import Peer
from agent.runtime.clock import SystemClock
from merkle.replica import ContainerId

THREADS = 32


def peak_bytes() -> int:
    """Return this program's peak memory; `getrusage` would count its parent's before the exec."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def main() -> None:
    """Carry out the order that stands on the command line, as JSON."""
    order = json.loads(sys.argv[1])
    peers: dict[str, Peer] = {}

    def dial(address: str) -> Peer:
        return peers.setdefault(address, Peer(address))

    with ThreadPoolExecutor(THREADS) as executor:
        result = Coordinator(executor, dial, now_ms=SystemClock().now_ms).reconstruct(
            Order(
                ContainerId(order["container_id"]),
                parse_scheme(order["scheme"]),
                tuple(Shard(*shard) for shard in order["sources"]),
                tuple(Shard(*shard) for shard in order["targets"]),
            )
        )
    print(
        json.dumps(
            {
                "read_bytes": result.read_bytes,
                "peak_bytes": peak_bytes(),
                "duration_ms": result.duration_ms,
            }
        )
    )


if __name__ == "__main__":
    main()
