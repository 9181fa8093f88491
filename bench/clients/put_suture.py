"""The product's client in its own process: `python -m bench.clients.put_suture SCM`, controlled by
lines.

    large PATH KEY           puts one file
    small FOLDER LANES KEY   puts the files of a folder
    single FOLDER THREADS KEY   puts them in one call each, from several threads

Memory is used as `suture put` uses it.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.clients.line_server import work_when_told
from suture.client.client import Client
from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import SourceFile
from suture.runtime.memory import share_heaps


def main(scm_address: str) -> None:
    """Put files as the lines on stdin command."""
    with ClusterClient(scm_address) as client, Client(scm_address) as library:

        def put_small(folder: str, lanes: str, key: str) -> None:
            sources = [
                source(path, f"{key}/{path.name}") for path in sorted(Path(folder).iterdir())
            ]
            client.put(sources, lanes=int(lanes))

        def put_singly(folder: str, threads: str, key: str) -> None:
            paths = sorted(Path(folder).iterdir())
            with ThreadPoolExecutor(int(threads)) as pool:
                for _ in pool.map(lambda path: library.put(f"{key}/{path.name}", path), paths):
                    pass

        work_when_told(
            {
                "large": lambda path, key: client.put([source(Path(path), key)], lanes=1),
                "small": put_small,
                "single": put_singly,
            }
        )


def source(path: Path, key: str) -> SourceFile:
    """Return the source of one file to put."""
    return SourceFile(key, path, path.stat().st_size)


if __name__ == "__main__":
    share_heaps()
    main(sys.argv[1])
