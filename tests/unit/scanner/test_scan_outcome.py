"""What a scan learned may be committed only when it learned all."""

import numpy as np
import pytest

from merkle.checksum import Algorithm
from merkle.replica import BlockId, ContainerId
from merkle.tree_building import TreeBuilder
from scanner.chunk_verdict import ChunkJudgement
from scanner.finding import DamageFault, ScanFinding, Verdict
from scanner.ports import Structure, StructureFault
from scanner.scan_outcome import ScanOutcome, ScanRecord
from tests.support.storage.replica_reader import NOW_MS, MemoryReader, MemoryReplica, noise

TREE = TreeBuilder(Algorithm.XXH3_64).build()


@pytest.mark.parametrize(
    ("stopped_because", "undecided_count", "is_complete"),
    [("", 0, True), ("stopped", 0, False), ("", 1, False), ("changed", 2, False)],
)
def test_only_a_whole_scan_is_complete(
    stopped_because: str, undecided_count: int, is_complete: bool
) -> None:
    """
    Cut off nowhere, and with the content of every chunk known.
    """
    outcome = ScanOutcome(TREE, (), 0, 0, 0, 0, stopped_because, undecided_count)

    assert is_complete is outcome.complete
    assert (0, 0) == (outcome.wavering_count, outcome.disagreement_count)


def test_scan_outcome_is_complete_by_default() -> None:
    """Nothing is undecided and nothing was stopped."""
    assert ScanOutcome(TREE, (), 0, 0, 0, 0).complete


@pytest.mark.parametrize("verdict", list(Verdict))
def test_single_damage_finding_makes_a_replica_damaged(verdict: Verdict) -> None:
    """Other findings may be beside it."""
    findings = tuple(
        ScanFinding(ContainerId(1), each, DamageFault.CHUNK_CHECKSUM, BlockId(1), 0, 1, 0, "")
        for each in (Verdict.SUSPECT_HOST, verdict, Verdict.OK)
    )

    is_damaged = verdict in (Verdict.CORRUPT, Verdict.UNREADABLE)
    assert is_damaged is ScanOutcome(TREE, findings, 3, 0, 0, 0).is_damaged


def nothing() -> None:
    """Neither stop the walk nor show life."""


@pytest.fixture
def record() -> ScanRecord:
    """What a scan has learned that has just begun."""
    return ScanRecord(
        ContainerId(1), Algorithm.XXH3_64, now_ms=lambda: NOW_MS, doubt=lambda *_: None
    )


def test_a_scan_that_learned_nothing_is_whole(record: ScanRecord) -> None:
    """The outcome has no counts but the bytes read."""
    outcome = record.outcome(bytes_read=7)

    counts = (outcome.disagreement_count, outcome.undecided_count, outcome.wavering_count)
    assert (7, 0, 0, (0, 0, 0)) == (
        outcome.bytes_read,
        outcome.finding_count,
        outcome.chunk_count,
        counts,
    )
    assert outcome.complete


def test_trouble_of_this_host_is_counted_by_its_kind(record: ScanRecord) -> None:
    """
    The chunk stays healthy in the tree: its medium is fine, for all that is known.
    """
    block = MemoryReplica().put(1, noise(10), noise(10), noise(10))
    record.tree.begin(block.block_id)
    seen = ChunkJudgement(Verdict.SUSPECT_HOST, DamageFault.CHUNK_CHECKSUM, "memory", 10, b"")
    disagreed = ChunkJudgement(
        Verdict.SUSPECT_HOST, DamageFault.CHUNK_CHECKSUM, "libraries", 10, b"", is_disagreement=True
    )
    wavered = ChunkJudgement(
        Verdict.SUSPECT_HOST,
        DamageFault.CHUNK_CHECKSUM,
        "no reads agree",
        10,
        b"",
        is_decided=False,
        is_wavering=True,
    )

    for chunk, judgement in zip(block.chunks, (seen, disagreed, wavered), strict=True):
        record.judged(block, chunk, judgement)

    outcome = record.outcome(bytes_read=30)
    counts = (outcome.disagreement_count, outcome.undecided_count, outcome.wavering_count)
    assert (1, 1, 1) == counts
    assert (3, 0) == (outcome.chunk_count, outcome.tree.unhealthy_count)


@pytest.mark.parametrize(
    ("is_unreadable", "verdict"), [(False, Verdict.CORRUPT), (True, Verdict.UNREADABLE)]
)
def test_existing_but_unreadable_metadata_is_unreadable(
    record: ScanRecord, is_unreadable: bool, verdict: Verdict
) -> None:
    """The metadata of a replica is judged like its chunks."""
    none = np.empty(0, np.uint64)
    fault = StructureFault(DamageFault.DESCRIPTOR_DAMAGED, "why", is_unreadable=is_unreadable)

    structure = Structure((fault,), none, none)
    record.structure(structure, none, {}, MemoryReader(MemoryReplica()), look=nothing)

    [finding] = record.outcome(bytes_read=0).findings
    assert (verdict, DamageFault.DESCRIPTOR_DAMAGED) == (finding.verdict, finding.fault)


def test_a_row_that_came_meanwhile_is_not_missing(record: ScanRecord) -> None:
    """The scan reports neither a missing block nor an unknown file."""
    replica = MemoryReplica()
    replica.put(1, noise(10))
    replica.put(2, noise(10))
    ids = np.array([1, 2, 3, 4], np.uint64)
    none = np.empty(0, np.uint64)

    structure = Structure((), ids[1:], ids[::2])
    record.structure(structure, none, {BlockId(4): 5}, MemoryReader(replica), look=nothing)

    findings = record.outcome(bytes_read=0).findings
    assert [
        (3, Verdict.CORRUPT, "no row; its file is there"),
        (4, Verdict.OK, "a file of a block that was deleted"),
    ] == [(finding.block_id, finding.verdict, finding.evidence) for finding in findings]


@pytest.mark.parametrize(("count", "verdict"), [(1, Verdict.OK), (2, Verdict.CORRUPT)])
def test_a_file_is_of_a_lost_block_where_rows_are_fewer_than_blocks_were(
    record: ScanRecord, count: int, verdict: Verdict
) -> None:
    """Without a tree it is unknown which one. Deleted blocks are not among them."""
    replica = MemoryReplica()
    replica.put(1, noise(10))
    rows, files = np.array([1], np.uint64), np.array([1, 2, 4], np.uint64)
    found = Structure((), files, np.empty(0, np.uint64), count)

    record.structure(found, rows, {BlockId(4): 5}, MemoryReader(replica), look=nothing)

    findings = record.outcome(bytes_read=0).findings
    assert {2: verdict, 4: Verdict.OK} == {one.block_id: one.verdict for one in findings}
