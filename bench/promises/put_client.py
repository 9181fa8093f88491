"""A client that puts one small file after the other until it is killed, and tells of each try.

    python -m bench.promises.put_client SCM FOLDER

prints a line for each: when it ended, on the machine's monotonic clock, its key, and the code of
the error or `-`. A put that failed is tried again under its key. FOLDER is for the file to be put.
"""

import hashlib
import sys
import time
from pathlib import Path
from typing import Final

from agent.client.client import Client
from agent.client.file_pieces import SourceFile
from agent.errors import Code, SutureError

PUT_BYTES: Final = 64 * 1024
PAUSE_S: Final = 0.1  # after an error
DONE: Final = "-"


def content(key: str) -> bytes:
    """Return what is put under a key."""
    return hashlib.shake_128(key.encode()).digest(PUT_BYTES)


def main(scm_address: str, folder: Path) -> None:
    """Put until killed."""
    path, number = folder / "put.bin", 0
    with Client(scm_address) as client:
        while True:
            number += 1
            key = f"outages/{number}"
            path.write_bytes(content(key))
            while (ended := put(client, SourceFile(key, path, PUT_BYTES))) != DONE:
                print(time.monotonic(), key, ended, flush=True)
                time.sleep(PAUSE_S)
            print(time.monotonic(), key, ended, flush=True)


def put(client: Client, source: SourceFile) -> str:
    """Try once; return how it ended."""
    try:
        client.put([source], lanes=1)
    except SutureError as error:
        # Of an earlier try the answer may have been lost, and not the key.
        return DONE if error.code is Code.KEY_EXISTS else error.code.value
    return DONE


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
