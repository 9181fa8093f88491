"""A replica with damage is copied as it is: what its source knows of arrives marked."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.storage.pushed import (
    Counting,
    Pair,
    decoded,
    encoded,
    exported,
    put_mixed,
)
from tests.support.storage.stored_replica import CHUNK_BYTES, CONTAINER

MIB = 1024 * 1024


def spoil(file: Path, harm: str) -> None:
    """Take a block's file away, or the most of it."""
    if harm == "missing":
        file.unlink()
    else:
        os.truncate(file, 10)


class TestDamage:
    def test_declared_damage_arrives_marked(self, pair: Pair) -> None:
        """
        A replica with a corrupt chunk that its source knows of is copied, and is UNHEALTHY there.
        """
        pair.source.replica.store.datanode_id = "dn-a"
        pair.source.replica.create()
        pair.source.replica.flip(2, 100)
        pair.source.scan()

        outcome = pair.source.replicate(pair.target)

        store = pair.target.replica.store
        facts = store.replica(CONTAINER)
        assert 1 == outcome.damaged_chunk_count
        assert (ReplicaState.UNHEALTHY, ReplicaState.CLOSED) == (facts.state, facts.former_state)
        [finding] = store.findings(CONTAINER)
        assert (2, 0) == (finding.block_id, finding.offset)
        assert "dn-a" in finding.evidence
        assert pair.source.files() == pair.target.files()
        assert (
            pair.source.replica.store.view(CONTAINER).tree().root
            == store.view(CONTAINER).tree().root
        )
        pair.target.scan()
        assert ReplicaState.UNHEALTHY is store.replica(CONTAINER).state

    def test_damage_among_small_blocks_arrives_marked(self, pair: Pair) -> None:
        """
        The blocks around it go together, it by itself, and each once.
        """
        put_mixed(pair.source)
        pair.source.replica.flip(3, 100)
        pair.source.scan()

        outcome = pair.source.replicate(pair.target)

        assert 5 == outcome.block_count
        assert pair.source.files() == pair.target.files()
        found = pair.target.replica.store.findings(CONTAINER)
        assert [3] == [item.block_id for item in found]

    def test_damage_of_no_block_hinders_no_copy(self, pair: Pair) -> None:
        """
        A replica without a descriptor has all of its blocks; the copy has a descriptor, too.
        """
        put_mixed(pair.source)
        pair.source.replica.store.paths(CONTAINER).descriptor.unlink()
        pair.source.scan()
        [finding] = pair.source.replica.store.findings(CONTAINER)
        assert finding.is_damage
        assert finding.block_id < 0

        pair.source.replicate(pair.target)

        assert pair.source.files() == pair.target.files()
        assert pair.target.replica.store.paths(CONTAINER).descriptor.exists()

    def test_damaged_parts_are_read_by_a_thread(self, pair: Pair) -> None:
        """A disk may take long to report an error, and unreadable parts are sent as zeros."""
        put_mixed(pair.source)
        pair.source.replica.flip(1, 100)
        pair.source.scan()
        threads = Counting(pair.source._fetchers)

        parts = list(replace(exported(pair.source), executor=threads).stream())

        assert 3 == threads.count  # of block 1, two of whole pages; the small ones take none
        assert "end" == pb.ImportPart.FromString(parts[-1]).WhichOneof("part")

    @pytest.mark.parametrize("size_bytes", [40_000, 600])
    def test_the_last_commit_is_that_of_the_rows(self, pair: Pair, size_bytes: int) -> None:
        """The last commit is that of the rows although the source announces less, for blocks of
        one and of several windows.
        """
        replica = pair.source.replica
        replica.store.create_container(CONTAINER)
        for number in range(1, 8):
            replica.put(number, size_bytes)
        replica.store.close_container(CONTAINER, bcsid=0, force=True)
        parts = list(decoded(pair.source))
        parts[0].header.bcsid = 0

        pair.target.importer.receive(encoded(parts))

        assert 7 == pair.target.replica.store.replica(CONTAINER).bcsid

    def test_lost_and_short_files_arrive_as_such(self, pair: Pair) -> None:
        """
        A missing file, a short one, a lost and a damaged row: all that is left is copied.
        """
        source = pair.source.replica
        source.create(blocks=6)
        source.file(1).unlink()
        os.truncate(source.file(2), CHUNK_BYTES + 5)
        source.delete_row(3)
        source.damage_row(4)
        pair.source.importer = None  # type: ignore[assignment]
        source.scan()

        outcome = pair.source.replicate(pair.target)

        assert pair.source.files() == pair.target.files()
        facts = pair.target.replica.store.replica(CONTAINER)
        assert ReplicaState.UNHEALTHY is facts.state
        named = {item.block_id for item in pair.target.replica.store.findings(CONTAINER)}
        assert ({1, 2, 3, 4}, 5) == (named, facts.block_count)
        assert len(pair.target.replica.store.findings(CONTAINER)) == outcome.damaged_chunk_count

    @pytest.mark.parametrize("harm", ["missing", "short"])
    def test_a_file_that_is_gone_or_short_is_news(self, pair: Pair, harm: str) -> None:
        """
        The source itself notices that bytes are missing, and ends the stream.
        """
        pair.source.replica.create()
        spoil(pair.source.replica.file(2), harm)
        export = exported(pair.source)

        parts = [pb.ImportPart.FromString(part) for part in export.stream()]

        assert export.failure is not None
        assert "CHECKSUM_MISMATCH" == export.failure.code.value
        assert "end" not in {part.WhichOneof("part") for part in parts}

    @pytest.mark.parametrize("harm", ["missing", "short"])
    def test_bad_block_among_small_ones_read_together_fails_the_copy(
        self, pair: Pair, harm: str
    ) -> None:
        """The error names the block, although its neighbours could be read."""
        put_mixed(pair.source)
        spoil(pair.source.replica.file(3), harm)
        export = exported(pair.source)

        for _ in export.stream():
            pass

        assert export.failure is not None
        assert "CHECKSUM_MISMATCH" == export.failure.code.value
        assert "reading block 3 " in str(export.failure)

    def test_an_unhealthy_replica_that_arrives_whole_can_heal(self, pair: Pair) -> None:
        """The replica arrives UNHEALTHY, and a clean scan at the target makes it CLOSED."""
        pair.source.replica.create()
        pair.source.replica.flip(2, 100)
        pair.source.scan()
        pair.source.replica.flip(2, 100)  # whole again, and nobody knows

        pair.source.replicate(pair.target)

        assert ReplicaState.UNHEALTHY is pair.target.replica.store.replica(CONTAINER).state
        pair.target.scan()
        assert ReplicaState.CLOSED is pair.target.replica.store.replica(CONTAINER).state
