"""A process that writes one report of a datanode as a Parquet file.

    python -m suture.wire.mapping.report_file

The agent sends a line of JSON and then pages of replicas to the process's stdin. Because this is a
separate process, Arrow, the client of an object store, or a file system that hangs cannot affect
the agent.

The process creates the content in memory and then writes the file (`FsPath.created`). Therefore, a
killed process leaves no partial file that could be read as a report. The columns are those of
`health.tables.report_columns`.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from typing import IO, Any, Final, cast

import pyarrow
import pyarrow.parquet
from google.protobuf.proto import parse_length_prefixed

from health.tables.report_columns import FILE, REPORT, REPORT_VERSION, file_name
from health.tables.snapshot_columns import Row, signed
from suture.errors import SutureError
from suture.wire.mapping.addresses import opened
from suture.wire.mapping.codec import ALGORITHMS, STATES
from suture.wire.mapping.file_systems import FsPath
from suture.wire.mapping.snapshot_file import KINDS
from suture.wire.v1 import container_pb2 as pb
from suture.wire.v1 import scm_pb2

pa: Any = pyarrow  # compiled code without types
pq: Any = pyarrow.parquet

NICE: Final = 10
ROWS_PER_GROUP: Final = 100_000  # number of rows that exist as Python values at the same time
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
SCHEMA: Final = pa.schema([pa.field(c.name, KINDS[c.kind]) for c in REPORT])


def main() -> int:
    """Write the report that is read from stdin. Print the numbers of rows and bytes, or the error,
    as JSON on stdout."""
    with suppress(PermissionError):  # SystemCallFilter= of a systemd unit may forbid it
        os.nice(NICE)
    source = sys.stdin.buffer
    header: dict[str, Any] = json.loads(source.readline())
    try:
        answer: dict[str, Any] = write(opened(header["directory"]), header, _pages(source))
    except (SutureError, OSError, pa.ArrowException) as error:
        answer = {"error": (str(error).splitlines() or [type(error).__name__])[0]}
    sys.stdout.write(json.dumps(answer) + "\n")
    return int("error" in answer)


def write(
    directory: FsPath, header: Mapping[str, Any], replicas: Iterable[pb.ReplicaReport]
) -> dict[str, Any]:
    """Write a report, and remove the oldest reports of the same datanode.

    Return the number of replicas and of bytes. Raise OSError or pyarrow.ArrowException if the
    report cannot be written.
    """
    datanode_id, at_ms = header["datanode_id"], header["reported_at_ms"]
    ids = {"datanode_id": datanode_id, "reported_at_ms": at_ms}
    content, count = _content({**ids, **header["datanode"]}, (ids | row_of(r) for r in replicas))
    own = directory / datanode_id
    name = file_name(at_ms, header["start_id"])
    with (own / name).created() as file:
        file.write(content)
    _remove_old(own, name, header["keep_count"])
    return {"replica_count": count, "bytes": content.size}


def row_of(report: pb.ReplicaReport) -> dict[str, Any]:
    """Convert the report of one replica to a row."""
    row: dict[str, Any] = {
        "container_id": report.container_id,
        "replica_index": report.replica_index,
        "state": STATES[report.state].value,
        "origin_datanode_id": report.origin_datanode_id,
        "bcsid": report.bcsid,
        "block_count": report.block_count,
        "used_bytes": report.used_bytes,
        "is_empty": report.is_empty,
        "volume_id": report.volume_id,
        "data_scan_at_ms": report.data_scan_at_ms or None,
        "finding_count": min(report.finding_count, INT_MAX),
        "is_contradictory": report.contradiction_count > 0,
        "load_error": report.load_error or None,
    }
    if report.HasField("tree"):
        tree = report.tree
        row["tree_algorithm"] = ALGORITHMS[tree.algorithm].value
        row["root"] = signed(tree.root)
        row["tombstones_checksum"] = signed(tree.tombstones_checksum)
        row["tombstone_count"] = min(tree.tombstone_count, INT_MAX)
        row["tree_generation"] = min(tree.generation, LONG_MAX)
    return row


def _content(datanode: dict[str, Any], replicas: Iterator[Row]) -> tuple[Any, int]:
    """Return the content of the file and the number of replicas. The last row group has the row of
    the datanode, which contains this number."""
    sink, count, group = pa.BufferOutputStream(), 0, list[Row]()
    with pq.ParquetWriter(sink, SCHEMA, compression="zstd", write_page_checksum=True) as file:

        def flush(rows: Sequence[Row]) -> None:
            if rows:
                file.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))

        for row in replicas:
            group.append(row)
            count += 1
            if len(group) == ROWS_PER_GROUP:
                flush(group)
                group = []
        flush(group)
        flush([datanode | {"report_version": REPORT_VERSION, "replica_count": count}])
    return sink.getvalue(), count


def _remove_old(own: FsPath, newest: str, keep_count: int) -> None:
    """Remove the oldest reports, so that `keep_count` remain. Also remove temporary files of killed
    processes."""
    files = [one.place for one in own.listed() if one.is_file]
    whole = [place for place in files if FILE.fullmatch(place.name)]
    left = [place for place in files if place.name.startswith(".") and place.name[1:] < newest]
    for place in (*whole[:-keep_count], *left):
        if place.name != newest:
            place.remove()


def _pages(source: IO[bytes]) -> Iterator[pb.ReplicaReport]:
    stream = cast("BytesIO", source)  # any binary file will do
    while (page := parse_length_prefixed(scm_pb2.ContainerReport, stream)) is not None:
        yield from page.replicas


if __name__ == "__main__":
    sys.exit(main())
