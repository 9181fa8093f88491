"""Our client in a process of its own: `python -m bench.put_own SCM`, told by lines.

    large PATH KEY           puts one file
    small FOLDER LANES KEY   puts the files of a folder
    cpu                      tells the processor seconds so far

Each is answered with one line of JSON. Memory is used as `suture put` uses it.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.client.client import Client
from agent.client.writer import Source
from agent.runtime.memory import share_heaps


def main(scm_address: str) -> None:
    """Put when told to."""
    with Client(scm_address) as client:
        say({})
        for line in sys.stdin:
            match line.split():
                case ["cpu"]:
                    say({"s": time.process_time()})
                case ["large", path, key]:
                    say({"s": put(client, [source(Path(path), key)], 1)})
                case ["small", folder, lanes, key]:
                    paths = sorted(Path(folder).iterdir())
                    sources = [source(path, f"{key}/{path.name}") for path in paths]
                    say({"s": put(client, sources, int(lanes))})
                case other:
                    raise ValueError(f"nobody understands {other!r}")


def source(path: Path, key: str) -> Source:
    """Return what is put of one file."""
    return Source(key, path, path.stat().st_size)


def put(client: Client, sources: Sequence[Source], lanes: int) -> float:
    """Put; return the seconds."""
    begun_s = time.perf_counter()
    client.put(sources, lanes=lanes)
    return time.perf_counter() - begun_s


def say(answer: dict[str, Any]) -> None:
    """Answer one line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    share_heaps()
    main(sys.argv[1])
