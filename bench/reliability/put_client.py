"""A client that puts one small file after another until it is killed, and prints each attempt.

    python -m bench.reliability.put_client SCM FOLDER

It prints a line for each attempt: its end on the machine's monotonic clock, its key, and the error
code or `-`. A failed put is retried under the same key. The file to put is created in FOLDER.
"""

import hashlib
import sys
import time
from pathlib import Path
from typing import Final

from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import SourceFile
from suture.errors import Code, SutureError

PUT_BYTES: Final = 64 * 1024
PAUSE_S: Final = 0.1  # after an error
DONE: Final = "-"


def content(key: str) -> bytes:
    """Return the content of a key."""
    return hashlib.shake_128(key.encode()).digest(PUT_BYTES)


def main(scm_address: str, folder: Path) -> None:
    """Put until killed."""
    path, number = folder / "put.bin", 0
    with ClusterClient(scm_address) as client:
        while True:
            number += 1
            key = f"outages/{number}"
            path.write_bytes(content(key))
            while (ended := put(client, SourceFile(key, path, PUT_BYTES))) != DONE:
                print(time.monotonic(), key, ended, flush=True)
                time.sleep(PAUSE_S)
            print(time.monotonic(), key, ended, flush=True)


def put(client: ClusterClient, source: SourceFile) -> str:
    """Put a file once; return DONE or the error code."""
    try:
        client.put([source], lanes=1)
    except SutureError as error:
        # An earlier try may have succeeded although its answer was lost.
        return DONE if error.code is Code.KEY_EXISTS else error.code.value
    return DONE


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
