"""A report of a datanode as a file: its rows, and when it is there."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from io import SEEK_END, BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from google.protobuf.proto import serialize_length_prefixed

from health.tables.report_columns import FILE
from suture.wire.mapping.addresses import opened
from suture.wire.mapping.file_systems import FsPath
from suture.wire.mapping.report_file import write
from suture.wire.v1 import container_pb2 as pb
from suture.wire.v1 import scm_pb2
from tests.support.verification.object_store import ObjectStore, object_store

AT_MS = 1_764_445_298_123
NAME = "20251129T194138.123Z-00000000000000ab.parquet"
DATANODE = {
    "cluster_id": "CID-1",
    "interval_s": 60,
    "address": "host:1",
    "rack": "/r1",
    "version": "1",
    "op_state": "IN_SERVICE",
    "op_expiry_ms": None,
    "capacity_bytes": 100,
    "available_bytes": 40,
}
WAIT_S = 60.0
FILE_BYTES_MAX = 10_000
KILLED_IN_ITS_FILE = f"""
import resource, runpy, signal
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, ({FILE_BYTES_MAX},) * 2)
runpy.run_module("suture.wire.mapping.report_file", run_name="__main__")
"""


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    """Return an S3-compatible store."""
    with object_store() as running:
        yield running


def replicas_of(count: int) -> list[pb.ReplicaReport]:
    """Return closed replicas whose roots are all different."""
    roots = (int.from_bytes(sha256(str(number).encode()).digest()[:8]) for number in range(count))
    trees = (pb.TreeSummary(algorithm=pb.TREE_XXH3_64, root=root) for root in roots)
    return [
        pb.ReplicaReport(container_id=number, state=pb.CLOSED, tree=tree)
        for number, tree in enumerate(trees, 1)
    ]


def header_of(directory: str, at_ms: int = AT_MS) -> dict[str, Any]:
    """Return what the agent says of a report."""
    return {
        "directory": directory,
        "keep_count": 2,
        "datanode_id": "dn1",
        "start_id": 0xAB,
        "reported_at_ms": at_ms,
        "datanode": DATANODE,
    }


def written(
    directory: str, replicas: Sequence[pb.ReplicaReport] = (), at_ms: int = AT_MS
) -> dict[str, Any]:
    """Write a report in this process."""
    return write(opened(directory), header_of(directory, at_ms), replicas)


def ended(
    directory: str, replicas: Sequence[pb.ReplicaReport], *program: str
) -> "subprocess.CompletedProcess[bytes]":
    """Have a process write a report as the agent does."""
    given = BytesIO(json.dumps(header_of(directory)).encode() + b"\n")
    given.seek(0, SEEK_END)
    serialize_length_prefixed(scm_pb2.ContainerReport(replicas=replicas), given)
    return subprocess.run(
        [sys.executable, *(program or ("-m", "suture.wire.mapping.report_file"))],
        input=given.getvalue(),
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )


def names_in(place: FsPath) -> list[str]:
    return [one.place.name for one in place.listed()]


def test_a_report_has_a_row_for_each_replica_and_one_for_its_datanode(tmp_path: Path) -> None:
    """Unknown values are null. A root is the signed long of the same bits."""
    tree = pb.TreeSummary(
        algorithm=pb.TREE_CRC32C,
        root=2**64 - 5,
        generation=3,
        block_count=2,
        tombstone_count=2**32 - 1,
        tombstones_checksum=7,
    )
    whole = pb.ReplicaReport(
        container_id=9,
        state=pb.CLOSED,
        used_bytes=4096,
        block_count=2,
        bcsid=11,
        origin_datanode_id="dn2",
        replica_index=4,
        tree=tree,
        volume_id="v1",
        data_scan_at_ms=AT_MS - 5,
        finding_count=1,
        contradiction_count=2,
    )
    unread = pb.ReplicaReport(
        container_id=10, state=pb.UNHEALTHY, volume_id="v2", load_error="torn"
    )

    process = ended(str(tmp_path), [whole, unread])

    path = tmp_path / "dn1" / NAME
    assert {"replica_count": 2, "bytes": path.stat().st_size} == json.loads(process.stdout)
    assert [NAME] == [file.name for file in (tmp_path / "dn1").iterdir()]
    rows = pq.read_table(path).to_pylist()
    replica, broken, datanode = rows
    told = {"datanode_id": "dn1", "reported_at_ms": AT_MS}
    nothing = dict.fromkeys(pq.read_schema(path).names)
    assert (
        nothing
        | told
        | {
            "container_id": 9,
            "replica_index": 4,
            "state": "CLOSED",
            "origin_datanode_id": "dn2",
            "bcsid": 11,
            "block_count": 2,
            "used_bytes": 4096,
            "is_empty": False,
            "tree_algorithm": "crc32c",
            "root": -5,
            "tombstones_checksum": 7,
            "tombstone_count": 2**31 - 1,
            "tree_generation": 3,
            "volume_id": "v1",
            "data_scan_at_ms": AT_MS - 5,
            "finding_count": 1,
            "is_contradictory": True,
        }
        == replica
    )
    assert ("UNHEALTHY", "torn", None, None) == tuple(
        broken[name] for name in ("state", "load_error", "root", "data_scan_at_ms")
    )
    assert nothing | told | DATANODE | {"report_version": 1, "replica_count": 2} == datanode


def test_the_oldest_reports_are_removed(tmp_path: Path) -> None:
    """Reports of other datanodes stay, and so do other files. The newest stays whatever its
    clock.
    """
    other = tmp_path / "dn2" / NAME
    other.parent.mkdir()
    other.write_bytes(b"other")
    note = tmp_path / "dn1" / "README"
    note.parent.mkdir()
    note.write_bytes(b"note")
    for minute in range(4):
        written(str(tmp_path), at_ms=AT_MS + minute * 60_000)

    after = written(str(tmp_path), at_ms=AT_MS - 60_000)

    assert 0 == after["replica_count"]
    minutes = [file.name[9:13] for file in sorted(note.parent.iterdir()) if file != note]
    assert ["1940", "1943", "1944"] == minutes
    assert b"note" == note.read_bytes()
    assert b"other" == other.read_bytes()


def test_a_process_killed_while_it_writes_leaves_nothing_that_reads_as_a_report(
    tmp_path: Path,
) -> None:
    """
    The kernel kills it in the middle of its file. The next report removes what is left.
    """
    process = ended(str(tmp_path), replicas_of(2_000), "-c", KILLED_IN_ITS_FILE)

    own = tmp_path / "dn1"
    (left,) = own.iterdir()
    assert -signal.SIGXFSZ == process.returncode
    assert FILE_BYTES_MAX == left.stat().st_size
    assert FILE.fullmatch(left.name) is None
    assert left.name.startswith(".")
    written(str(tmp_path), at_ms=AT_MS + 60_000)
    assert 1 == len(list(own.iterdir()))


def test_a_report_is_an_object_in_a_store(store: ObjectStore) -> None:
    """
    The address of its bucket is the same as that of a snapshot; of old ones the newest two stay.
    """
    address = store.address("reports")
    for minute in range(3):
        written(address, [pb.ReplicaReport(container_id=1, state=pb.OPEN)], AT_MS + minute * 60_000)

    own = FsPath.of(address) / "dn1"
    first, newest = names_in(own)
    assert ["1942", "1943"] == [name[9:13] for name in (first, newest)]
    place = own / newest
    table = pq.read_table(place.path, filesystem=place.files)
    assert [1, None] == table["container_id"].to_pylist()


@pytest.mark.parametrize("kind", ["file", "store", "address"])
def test_a_place_that_takes_no_file_is_named(kind: str, tmp_path: Path, store: ObjectStore) -> None:
    """The process reports it in one line."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    directory = {
        "file": str(blocked),
        "store": store.nowhere("reports"),
        "address": "s3://bucket/x?no_such_option=1",
    }[kind]

    process = ended(directory, ())

    assert 1 == process.returncode
    assert json.loads(process.stdout)["error"]
    assert b"Traceback" not in process.stderr
