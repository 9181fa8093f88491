"""Finds the contents of a container from its datanodes, after the control plane was restored from
an old backup.

Each replica reports its blocks and its tombstones. The module determines which blocks can be read,
the files that they are parts of, and the blocks of which only tombstones remain. The result names
each datanode that does not answer. A missing answer is never taken as proof that a block does not
exist.

A cluster has more blocks than fit into the memory of a client. Therefore, `PartStore` sorts them on
disk with SQLite, and only the files of one key are assembled in memory at a time.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from merkle.replica import ContainerId
from suture.client.block_vote import BlockVote
from suture.client.put_metadata import DiscoveredPut, PartBlock, decoded, files_of
from suture.ec.scheme import parse_scheme
from suture.errors import SutureError
from suture.wire.clients.block_peer import NodeAddress
from suture.wire.clients.peer import Peer
from suture.wire.v1 import scm_pb2


@dataclass(slots=True)
class DiscoveredContainer:
    """The contents of one container, according to its datanodes."""

    container_id: int
    scheme: str = ""
    parts: list[PartBlock] = field(default_factory=list)  # readable blocks
    nameless: list[int] = field(default_factory=list)  # readable blocks of unknown files
    deleted: list[int] = field(default_factory=list)  # only tombstones of these blocks remain
    torn: list[int] = field(default_factory=list)  # blocks with too few shards
    silent: dict[str, str] = field(default_factory=dict)  # datanode -> error
    last_local_id: int = 0


def fetch_contents(
    info: scm_pb2.ContainerInfo, dial: Callable[[NodeAddress], Peer]
) -> DiscoveredContainer:
    """Ask every datanode with a replica of a container for the contents of the replica, and combine
    the answers."""
    container_id = ContainerId(info.container_id)
    seen = DiscoveredContainer(container_id, info.scheme)
    rows = BlockVote(container_id)
    buried: set[int] = set()
    for one in info.replicas:
        try:
            peer = dial(one.datanode)
            blocks = peer.blocks_of(container_id)
            if one.replica.tree.tombstone_count:
                tree = peer.blocks(container_id)
                buried.update(tree.block_ids[tree.deleted].tolist())
        except SutureError as error:
            seen.silent[one.datanode.datanode_id] = str(error)
            continue
        for block in blocks:
            rows.add(block, one.replica.replica_index)
    seen.scheme = seen.scheme or str(rows.scheme() or "")
    scheme = parse_scheme(seen.scheme) if seen.scheme else None
    needed = scheme.data_count if scheme is not None else 1
    for local_id in rows.shown:
        if len(rows.holders[local_id]) < needed:
            if local_id not in buried:
                seen.torn.append(local_id)
            continue
        length_bytes = rows.length_bytes(local_id, scheme, is_coded=scheme is not None)
        part = rows.part(local_id, length_bytes)
        if part is None:
            seen.nameless.append(local_id)
        else:
            seen.parts.append(part)
    if not seen.silent:
        seen.deleted = sorted(b for b in buried if len(rows.holders.get(b, ())) < needed)
    seen.last_local_id = max([0, *rows.shown, *buried])
    return seen


class PartStore:
    """Stores parts of files in a temporary database. Use it as a context manager, which deletes the
    database."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("")  # a temporary database, in a file without a name
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute(
            "CREATE TABLE part (key TEXT, container_id INTEGER, local_id INTEGER, bcsid INTEGER,"
            " length_bytes INTEGER, part INTEGER, note TEXT)"
        )

    def __enter__(self) -> "PartStore":
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def add(self, parts: Iterable[PartBlock]) -> None:
        """Add parts of files, in any order."""
        self._database.executemany(
            "INSERT INTO part VALUES (?, ?, ?, ?, ?, ?, ?)", map(_row, parts)
        )

    def files(self) -> Iterator[DiscoveredPut]:
        """Yield the files that the stored parts belong to, in the order of `files_of`."""
        rows = self._database.execute("SELECT * FROM part ORDER BY key")
        for _key, group in groupby(map(_part, rows), key=lambda part: part.key):
            yield from files_of(group)


def _row(part: PartBlock) -> tuple[Any, ...]:
    note = "" if part.note is None else part.note.encoded()
    return (
        *(part.key, part.container_id, part.local_id, part.bcsid, part.length_bytes, part.part),
        note,
    )


def _part(row: tuple[Any, ...]) -> PartBlock:
    key, container_id, local_id, bcsid, length_bytes, part, note = row
    return PartBlock(container_id, local_id, bcsid, length_bytes, key, part, decoded(note))
