"""Repairs on a host whose memory makes something else of what is read: no medium gets worse."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.store.files import blockfile
from agent.store.operations import overwrite
from agent.store.operations.batch_repair import OfferedChunk
from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockId, ContainerId
from suture.errors import VolumeFailed
from tests.support.faults.flips import failing_memory
from tests.support.storage.stores import (
    CHUNK_BYTES,
    chunk_of,
    closed_replica,
    content,
    flip_bit,
    open_store,
    reopened,
)

ONE = ContainerId(1)
BLOCK = BlockId(2)
SECOND = content((2, 1))
CHUNK = chunk_of(SECOND, CHUNK_BYTES)
OFFERS = (
    OfferedChunk(BLOCK, CHUNK, SECOND),
    OfferedChunk(BlockId(9), chunk_of(content((9, 0))), content((9, 0))),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ReplicaStore]:
    """A store with a closed container 1 of blocks 1, 2 and 3, two chunks each."""
    opened = open_store(tmp_path)
    closed_replica(opened)
    yield opened
    opened.close()


def is_unfinished(store: ReplicaStore) -> bool:
    """Whether the journal of container 1 has an entry."""
    with store.volume_set.places[ONE].index.read() as rows:
        return any(True for _ in rows.journal(ONE))


def held(store: ReplicaStore) -> bytes:
    """Return the file of the block."""
    return store.paths(ONE).block_file(BLOCK).read_bytes()


def test_bytes_misread_by_bad_memory_are_not_put_back(
    store: ReplicaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole bytes count as damaged, and the written ones as lost. The old bytes are restored as
    they were, not as they were misread.
    """
    before = held(store)

    with monkeypatch.context() as bad:
        reads = failing_memory(bad)
        with pytest.raises(VolumeFailed, match="read back differ"):
            store.repair(ONE).install_chunk(BLOCK, CHUNK, SECOND)

    assert len(reads) > 2
    assert before == held(store)
    assert not is_unfinished(store)


def test_batch_misread_by_bad_memory_is_not_put_back(
    store: ReplicaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stays of a new block that seems not to have arrived."""
    before = held(store)

    with monkeypatch.context() as bad:
        reads = failing_memory(bad)
        installed = store.install_chunks(ONE, OFFERS)

    assert frozenset() == installed
    assert len(reads) > len(OFFERS)
    assert before == held(store)
    assert not store.paths(ONE).block_file(BlockId(9)).exists()
    assert not is_unfinished(store)


def test_a_chunk_that_reads_whole_twice_is_not_written_over(
    store: ReplicaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One failed read says nothing about the medium."""
    with monkeypatch.context() as bad:
        failing_memory(bad, good=(2, 3))
        bad.setattr(blockfile, "overwrite_pieces", None)
        installed = store.install_chunks(ONE, OFFERS[:1])

    assert frozenset() == installed
    assert not is_unfinished(store)


def test_matching_earlier_read_saves_a_read(
    store: ReplicaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two reads that agree are enough, whoever made the first."""
    path = store.paths(ONE).block_file(BLOCK)
    real = blockfile.read_past_cache
    reads: list[int] = []

    def counting(at: Path, offset: int, length_bytes: int) -> bytes:
        reads.append(offset)
        return real(at, offset, length_bytes)

    monkeypatch.setattr(blockfile, "read_past_cache", counting)
    counts = []
    for is_seen in (False, True):
        flip_bit(path, CHUNK_BYTES + 5)
        seen = blockfile.checksum_of(held(store)[CHUNK_BYTES:]) if is_seen else b""
        reads.clear()
        assert frozenset({0}) == store.install_chunks(ONE, [replace(OFFERS[0], seen=seen)])
        counts.append(len(reads))

    assert counts[0] == counts[1] + 1
    assert SECOND == held(store)[CHUNK_BYTES:]


def test_differing_earlier_read_does_not_count(
    store: ReplicaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier read differs from the present one, so the chunk is read again, and is whole."""
    bad_read = replace(OFFERS[0], seen=blockfile.checksum_of(bytes(CHUNK_BYTES)))
    with monkeypatch.context() as bad:
        failing_memory(bad, good=(2, 3))
        bad.setattr(blockfile, "overwrite_pieces", None)
        installed = store.install_chunks(ONE, [bad_read])

    assert frozenset() == installed
    assert not is_unfinished(store)


def test_a_copy_that_reads_otherwise_each_time_restores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invented bytes are not restored. With sound memory the old bytes are back."""
    store = open_store(tmp_path)
    closed_replica(store)
    flip_bit(store.paths(ONE).block_file(BLOCK), CHUNK_BYTES + 5)
    before = held(store)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(blockfile, "overwrite_pieces", killed)
        patched.setattr(overwrite, "_roll_back", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            store.install_chunks(ONE, OFFERS[:1])
    with monkeypatch.context() as bad:
        failing_memory(bad)
        store = reopened(store, tmp_path)
    assert before == held(store)
    assert is_unfinished(store)
    store = reopened(store, tmp_path)

    assert before == held(store)
    assert not is_unfinished(store)
    store.close()
