"""`suture salvage` of replicas whose rows differ: what is left behind, and what is contradicted."""

from pathlib import Path

import pytest

from agent.salvage.salvage import salvage
from merkle.replica import Bcsid, BlockData, BlockId, ChunkInfo
from tests.support.storage.replica_reader import chunk_of
from tests.support.storage.stored_replica import (
    CHUNK_BYTES,
    CONTAINER,
    StoredReplica,
    noise,
)

BLOCK = BlockId(7)
FILE = f"blocks/{CONTAINER}/{BLOCK}.bin"


def stored(path: Path, *commits: tuple[int, tuple[bytes, ...]]) -> Path:
    """Return a volume whose one block was committed as often, each time with all that was new."""
    replica = StoredReplica(path)
    replica.store.create_container(CONTAINER)
    chunks: list[ChunkInfo] = []
    for bcsid, new in commits:
        for data in new:
            end = chunks[-1].end if chunks else 0
            chunk = chunk_of(data, end)
            chunks.append(replica.store.writer(CONTAINER).write_chunk(BLOCK, chunk, data))
        replica.store.writer(CONTAINER).put_block(BlockData(BLOCK, Bcsid(bcsid), tuple(chunks)))
    replica.store.close_container(CONTAINER, bcsid=0, force=True)
    replica.close()
    return path


FIRST, SECOND, OTHER = (noise(CHUNK_BYTES, seed) for seed in (1, 2, 3))


@pytest.mark.parametrize("missed", [((1, (FIRST,)),), ((1, ()),)], ids=["a part", "all of it"])
def test_a_replica_that_missed_a_commit_contradicts_nobody(
    tmp_path: Path, missed: tuple[tuple[int, tuple[bytes, ...]], ...]
) -> None:
    """
    Volumes that a person adds take no file away which the others have whole.
    """
    whole = stored(tmp_path / "whole", (1, (FIRST,)), (2, (SECOND,)))
    behind = stored(tmp_path / "behind", *missed)

    summary = salvage([behind, whole], tmp_path / "out")

    assert [] == summary.incomplete_files
    assert FIRST + SECOND == (tmp_path / "out" / FILE).read_bytes()


def test_salvage_does_not_write_an_earlier_version_of_a_grown_block(tmp_path: Path) -> None:
    """The later commit is damaged. The earlier one is not written as the file."""
    whole = StoredReplica(stored(tmp_path / "whole", (1, (FIRST,)), (2, (SECOND,))))
    whole.flip(BLOCK, CHUNK_BYTES + 7)
    whole.close()
    behind = stored(tmp_path / "behind", (1, (FIRST,)))

    summary = salvage([behind, whole.path], tmp_path / "out", is_partial=True)

    (lack,) = summary.incomplete_files
    assert not (tmp_path / "out" / FILE).exists()
    assert FIRST + bytes(CHUNK_BYTES) == (tmp_path / "out" / lack.partial_path).read_bytes()


@pytest.mark.parametrize(
    ("bcsid", "others"), [(1, (OTHER,)), (3, (OTHER,)), (1, (OTHER, SECOND)), (3, ()), (2, ())]
)
def test_contradicting_replicas_are_not_salvaged_as_whole(
    tmp_path: Path, bcsid: int, others: tuple[bytes, ...]
) -> None:
    """Both replicas verify, and one of them is wrong. The common part is written to the partial
    file on request.
    """
    one = stored(tmp_path / "one", (2, (FIRST, SECOND)))
    other = stored(tmp_path / "other", (bcsid, (FIRST, *others)))

    summary = salvage([one, other], tmp_path / "out", is_partial=True)

    (lack,) = summary.incomplete_files
    assert any("contradict each other" in why for why in lack.missing_parts)
    assert not (tmp_path / "out" / FILE).exists()
    written = (tmp_path / "out" / lack.partial_path).read_bytes()
    assert FIRST + bytes(max(1, len(others)) * CHUNK_BYTES) == written
