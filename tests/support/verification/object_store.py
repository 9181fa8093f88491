"""An S3-compatible object store in its own process, from the package moto."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs as pafs

from suture.wire.mapping.file_systems import FsPath
from tests.support.waiting import wait_until
from tools.demo.cluster import free_port

ROOT = Path(__file__).parents[3]
START_S_MAX = 60.0
BUCKET = "snapshots"


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A listening object store with one bucket."""

    host: str

    def address(self, path: str) -> str:
        """Return the address of an object in the bucket, in the form that a user writes."""
        query = f"endpoint_override={self.host}&scheme=http&region=us-east-1"
        return f"s3a://{BUCKET}/{path}?{query}"

    def nowhere(self, path: str) -> str:
        """Return an address in a bucket that does not exist, so that no file can be written."""
        return self.address(path).replace(f"/{BUCKET}/", "/no-such-bucket/")


def give_credentials() -> None:
    """Set credentials for this process and its children; this store accepts any credentials."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret"}


def put(directory: Path, address: str) -> None:
    """Copy the files of a directory into a store."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            with (FsPath.of(address) / path.relative_to(directory).as_posix()).created() as stream:
                stream.write(path.read_bytes())


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Run an object store, and yield it. At the end, the store and its content are deleted."""
    give_credentials()
    port = str(free_port())
    host = f"127.0.0.1:{port}"
    module = ["moto.server", "-H", "127.0.0.1", "-p", port]
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", *module],
        cwd=ROOT,
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
