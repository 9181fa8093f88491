"""A second implementation of replica reports by columns, written after docs/WIRE.md."""

import struct
from typing import Final

from suture.wire.v1 import container_pb2, scm_pb2

NUMBERS: Final = {
    "replica_index": "B",
    "finding_count": "Q",
    "used_bytes": "Q",
    "block_count": "Q",
    "bcsid": "Q",
    "data_scan_at_ms": "Q",
}
OF_TREES: Final = {
    "algorithm": ("algorithm", "B"),
    "root": ("root", "Q"),
    "generation": ("generation", "Q"),
    "tree_block_count": ("block_count", "Q"),
    "tombstone_count": ("tombstone_count", "Q"),
    "tombstones_checksum": ("tombstones_checksum", "Q"),
}
WORDS: Final = {
    "origin": "origin_datanode_id",
    "volume": "volume_id",
    "error": "load_error",
}


def columns(replicas: list[container_pb2.ReplicaReport]) -> scm_pb2.ReplicaColumns:
    """Return a page that has the reports of `replicas` by columns."""
    words = sorted({getattr(r, name) for r in replicas for name in WORDS.values()} | {""})

    def packed(width: str, *values: int) -> bytes:
        return struct.pack(f"<{len(values)}{width}", *values)

    def flags(replica: container_pb2.ReplicaReport) -> int:
        has_tree, contradicts = replica.HasField("tree"), replica.contradiction_count > 0
        return replica.is_empty | has_tree << 1 | contradicts << 2

    page = scm_pb2.ReplicaColumns(
        count=len(replicas),
        container_id=packed("Q", *(r.container_id for r in replicas)),
        state=packed("B", *(r.state for r in replicas)),
        flags=packed("B", *map(flags, replicas)),
        words=words[1:],
    )
    for name, width in NUMBERS.items():
        setattr(page, name, packed(width, *(getattr(r, name) for r in replicas)))
    for name, (field, width) in OF_TREES.items():
        setattr(page, name, packed(width, *(getattr(r.tree, field) for r in replicas)))
    for name, field in WORDS.items():
        setattr(page, name, packed("I", *(words.index(getattr(r, field)) for r in replicas)))
    return page


def replicas_in(page: scm_pb2.ReplicaColumns) -> list[container_pb2.ReplicaReport]:
    """Return the reports of a page."""
    count = page.count

    def numbers(name: str, width: str) -> tuple[int, ...]:
        return struct.unpack(
            f"<{count}{width}",
            getattr(page, name) or bytes(8 * count)[: count * struct.calcsize(width)],
        )

    words = ["", *page.words]
    reports = [
        container_pb2.ReplicaReport(
            container_id=container_id,
            state=state,  # type: ignore[arg-type]
            is_empty=bool(flags & 1),
            tree=container_pb2.TreeSummary() if flags & 2 else None,
            contradiction_count=flags >> 2,
        )
        for container_id, state, flags in zip(
            numbers("container_id", "Q"), numbers("state", "B"), numbers("flags", "B"), strict=True
        )
    ]
    for name, width in NUMBERS.items():
        for report, value in zip(reports, numbers(name, width), strict=True):
            setattr(report, name, value)
    for name, (field, width) in OF_TREES.items():
        for report, value in zip(reports, numbers(name, width), strict=True):
            if report.HasField("tree"):
                setattr(report.tree, field, value)
    for name, field in WORDS.items():
        for report, value in zip(reports, numbers(name, "I"), strict=True):
            setattr(report, field, words[value])
    return reports
