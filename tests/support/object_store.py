"""An S3-compatible store in a process of its own, which the package moto ships for tests."""

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow.fs as pafs

from tests.support.waiting import wait_until

START_S_MAX = 60.0
BUCKET = "snapshots"


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A store that listens here, with one bucket."""

    host: str

    def address(self, path: str) -> str:
        """Return the address of something in the bucket, as a person gives it."""
        query = f"endpoint_override={self.host}&scheme=http&region=us-east-1"
        return f"s3a://{BUCKET}/{path}?{query}"


def give_credentials() -> None:
    """Set credentials, of which this store takes any, for this process and those it starts."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret"}


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Yield a store; it is gone afterwards, with all it holds."""
    give_credentials()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    host = f"127.0.0.1:{port}"
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", port],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            wait_until(lambda: _answers(host, server), within_s=START_S_MAX)
            pafs.S3FileSystem(
                endpoint_override=host,
                scheme="http",
                region="us-east-1",
                allow_bucket_creation=True,
            ).create_dir(BUCKET)
            yield ObjectStore(host)
        finally:
            server.kill()


def _answers(host: str, server: subprocess.Popen[bytes]) -> bool:
    assert server.poll() is None, "the store ended"
    try:
        with urllib.request.urlopen(f"http://{host}/", timeout=1):
            return True
    except OSError:
        return False
