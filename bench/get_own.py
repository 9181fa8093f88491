"""Our client in a process of its own: `python -m bench.get_own SCM`, told by lines.

    small FILES READS THREADS   reads small files, one after the other in each thread
    large                       reads the large file
    cpu                         tells the processor seconds so far

Each is answered with one line of JSON. Memory is used as `suture get` uses it.
"""

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agent.client.client import Client
from agent.runtime.memory import share_heaps


def main(scm_address: str) -> None:
    """Read when told to."""
    with Client(scm_address) as client:
        say({})
        for line in sys.stdin:
            match line.split():
                case ["cpu"]:
                    say({"s": time.process_time()})
                case ["small", files, reads, threads]:
                    say({"s": read_small(client, int(files), int(reads), int(threads))})
                case ["large"]:
                    say({"s": timed(lambda: read(client, "large"))})
                case other:
                    raise ValueError(f"nobody understands {other!r}")


def read_small(client: Client, files: int, reads: int, threads: int) -> float:
    """Read so many small files; return the seconds."""

    def work(first: int) -> None:
        for number in range(first, reads, threads):
            read(client, f"small/{number % files}")

    with ThreadPoolExecutor(threads) as pool:
        return timed(lambda: list(pool.map(work, range(threads))))


def read(client: Client, key: str) -> None:
    """Read a file to its end."""
    for _ in client.get(key):
        pass


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds it takes."""
    begun_s = time.perf_counter()
    work()
    return time.perf_counter() - begun_s


def say(answer: dict[str, Any]) -> None:
    """Answer one line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    share_heaps()
    main(sys.argv[1])
