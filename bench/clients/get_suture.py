"""The product's client in its own process: `python -m bench.clients.get_suture SCM`, controlled by
lines.

    small FILES READS THREADS   reads small files, one after the other in each thread
    large                       reads the large file

Memory is used as `suture get` uses it.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

from bench.clients.line_server import work_when_told
from suture.client.cluster_client import ClusterClient
from suture.runtime.memory import share_heaps


def main(scm_address: str) -> None:
    """Read files as the lines on stdin command."""
    with ClusterClient(scm_address) as client:
        work_when_told(
            {
                "small": lambda files, reads, threads: read_small(
                    client, int(files), int(reads), int(threads)
                ),
                "large": lambda: read(client, "large"),
            }
        )


def read_small(client: ClusterClient, files: int, reads: int, threads: int) -> None:
    """Read small files `reads` times in total, in several threads."""

    def work(first: int) -> None:
        for number in range(first, reads, threads):
            read(client, f"small/{number % files}")

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))


def read(client: ClusterClient, key: str) -> None:
    """Read a file to its end."""
    for _ in client.get(key):
        pass


if __name__ == "__main__":
    share_heaps()
    main(sys.argv[1])
