"""Runs one reconstruction in its own process; prints the bytes read and the memory used."""

import json
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agent.reconstruct.coordinator import ReconstructionCoordinator
from merkle.replica import BlockId, ChunkInfo, ContainerId
from suture.ec.rebuild_task import RebuildTask, ShardLocation
from suture.ec.scheme import parse_scheme
from suture.errors import Code, RefusedError
from suture.runtime.clock import SystemClock
from suture.wire.clients.peer import Peer

THREADS = 32


class OneByOne(Peer):
    """Client of a datanode that makes one call per cell, as before several cells were combined in a
    call."""

    def read_chunks(
        self, container_id: ContainerId, keys: Sequence[tuple[BlockId, int]]
    ) -> dict[tuple[BlockId, int], tuple[ChunkInfo, bytes]]:
        """Raise RefusedError, so that the caller reads each chunk in a separate call."""
        del container_id, keys
        raise RefusedError(Code.MALFORMED_REQUEST, "no such method")


def peak_bytes() -> int:
    """Return this program's peak memory. `getrusage` would include its parent's before the exec."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def main() -> None:
    """Run the reconstruction that the first argument describes in JSON."""
    order = json.loads(sys.argv[1])
    peers: dict[str, Peer] = {}
    kind = OneByOne if order.get("one_by_one") else Peer

    def dial(shard: ShardLocation) -> Peer:
        return peers.setdefault(shard.address, kind(shard.address))

    with ThreadPoolExecutor(THREADS) as executor:
        result = ReconstructionCoordinator(executor, dial, now_ms=SystemClock().now_ms).reconstruct(
            RebuildTask(
                ContainerId(order["container_id"]),
                parse_scheme(order["scheme"]),
                tuple(ShardLocation(*shard) for shard in order["sources"]),
                tuple(ShardLocation(*shard) for shard in order["targets"]),
            )
        )
    print(
        json.dumps(
            {
                "read_bytes": result.read_bytes,
                "peak_bytes": peak_bytes(),
                "duration_ms": result.duration_ms,
                "cpu_ms": int(time.process_time() * 1000),
            }
        )
    )


if __name__ == "__main__":
    main()
