"""A client that reads chunks repeatedly, and prints the duration of each read.

    python -m bench.scans.steady_reader ADDRESS CONTAINER RATE

After a random pause it reads a chunk of the container over gRPC, then pauses again. It prints when
each read began, on the machine's monotonic clock, and how long it took, in seconds. RATE is the
reads per second if reads took no time. Ends when it is killed.
"""

import itertools
import sys
import time
from random import Random

from merkle.replica import ContainerId
from suture.wire.clients.peer import Peer


def main(address: str, container_id: ContainerId, reads_per_s: float) -> None:
    """Read chunks until the process is killed."""
    moments = Random(1)  # noqa: S311 - moments, not secrets
    with Peer(address) as peer:
        chunks = [
            (block.block_id, chunk.offset)
            for block in peer.blocks_of(container_id)
            for chunk in block.chunks
        ]
        for block_id, offset in itertools.cycle(chunks):
            time.sleep(moments.expovariate(reads_per_s))
            at_s = time.monotonic()
            peer.read_chunk(container_id, block_id, offset)
            sys.stdout.write(f"{at_s:.6f} {time.monotonic() - at_s:.6f}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], ContainerId(int(sys.argv[2])), float(sys.argv[3]))
