"""Clients that read chunks at random.

    python -m bench.scans.read_clients ADDRESS CONTAINER THREADS RATE

Each thread waits a random time, reads one chunk of the container over gRPC, and prints when that
ended, on the machine's monotonic clock, and how long it took, in seconds. RATE is the total reads
per second if reads took no time. No chunk is read twice, because the second read would come from
memory. Ends when all are read or it is killed.
"""

import sys
import threading
import time
from random import Random

from merkle.replica import BlockId, ContainerId
from suture.wire.clients.peer import Peer


def main(address: str, container_id: ContainerId, thread_count: int, reads_per_s: float) -> None:
    """Run the threads until all chunks were read."""
    peer = Peer(address)
    chunks = [
        (block.block_id, chunk.offset)
        for block in peer.blocks_of(container_id)
        for chunk in block.chunks
    ]
    peer.close()
    random = Random(1)  # noqa: S311 - moments, not secrets
    random.shuffle(chunks)
    share = -(-len(chunks) // thread_count)

    def work(number: int, mine: list[tuple[BlockId, int]]) -> None:
        moments = Random(number)  # noqa: S311 - moments, not secrets
        reader = Peer(address)
        for block_id, offset in mine:
            time.sleep(moments.expovariate(reads_per_s / thread_count))
            begun_s = time.monotonic()
            reader.read_chunk(container_id, block_id, offset)
            now_s = time.monotonic()
            sys.stdout.write(f"{now_s:.6f} {now_s - begun_s:.6f}\n")
            sys.stdout.flush()
        reader.close()

    threads = [
        threading.Thread(target=work, args=(number, chunks[number * share : (number + 1) * share]))
        for number in range(thread_count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], ContainerId(int(sys.argv[2])), int(sys.argv[3]), float(sys.argv[4]))
