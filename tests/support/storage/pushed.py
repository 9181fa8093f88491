"""Two datanodes, of which one pushes a replica to the other, and the messages of this push."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.store.options import PACKED_COUNT_MIN
from agent.transfer.outgoing import ReplicaExport
from agent.transfer.parts import ImportMessage, read_part
from suture.errors import RefusedError
from suture.runtime.ports import Executor, Future
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.storage.datanodes import Datanode
from tests.support.storage.stored_replica import CONTAINER

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Pair:
    """A datanode with a replica (`source`), and a datanode without it (`target`)."""

    source: Datanode
    target: Datanode
    path: Path

    def target_is_untouched(self) -> None:
        """Assert that the target has no part of the replica, and no reserved space."""
        store = self.target.replica.store
        assert [] == store.replica_ids()
        layout = store.volume_set.working[0].layout
        assert [] == list(layout.importing.iterdir())
        assert [] == list(layout.current.glob("*/*"))
        assert 0 == store.volume_set.arrivals.reserved_bytes(store.volume_set.working[0])
        with store.volume_set.working[0].index.read() as rows:
            assert [] == list(rows.blocks(CONTAINER))
            assert [] == list(rows.journal())


@dataclass(slots=True)
class Counting:
    """An executor that counts the submitted work."""

    executor: Executor
    count: int = 0

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future:
        """Count the work, and submit it to the executor."""
        self.count += 1
        return self.executor.submit(work, *arguments)


@contextmanager
def serving_pair(path: Path, *, packed_count_min: int = PACKED_COUNT_MIN) -> Iterator[Pair]:
    """Yield two datanodes that serve. The source has no replica yet."""
    source, target = (
        Datanode(f"dn-{name}", path / name, packed_count_min=packed_count_min) for name in "ab"
    )
    source.serve()
    target.serve()
    try:
        yield Pair(source, target, path)
    finally:
        source.close()
        target.close()


def put_mixed(source: Datanode) -> None:
    """Create a closed replica with one large and four small blocks on the source."""
    replica = source.replica
    replica.store.create_container(CONTAINER)
    replica.put(1, 2 * MIB, 100_000)
    for number in range(2, 6):
        replica.put(number, 5_000)
    replica.store.close_container(CONTAINER, bcsid=0, force=True)


def exported(source: Datanode) -> ReplicaExport:
    """Return the export of the source's replica."""
    return ReplicaExport(
        store=source.replica.store,
        container_id=CONTAINER,
        executor=source._fetchers,
    )


def decoded(source: Datanode) -> Iterator[pb.ImportPart]:
    """Yield the messages in which the source's replica is pushed."""
    for part in exported(source).stream():
        yield pb.ImportPart.FromString(part)


def encoded(messages: list[pb.ImportPart]) -> Iterator[ImportMessage]:
    """Yield messages as the importer receives them, encoded with protobuf's standard field
    order."""
    for message in messages:
        yield read_part(message.SerializeToString())


def refused(pair: Pair, parts: list[pb.ImportPart]) -> str:
    """Import a stream, which must be refused; return the error code. Fail if a part of the replica
    remains on the target."""
    with pytest.raises(RefusedError) as refusal:
        pair.target.importer.receive(encoded(parts))
    pair.target_is_untouched()
    return refusal.value.code.value
