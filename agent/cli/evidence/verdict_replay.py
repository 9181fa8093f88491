"""Computes every verdict in a bundle again from the other evidence in the bundle. No I/O.

A verdict is the recorded result of a check:

- The verdicts on chunks are computed from the rows and the checksums of the data on disk.
- The tree and its root are computed from the leaves.
- The state of the replica is computed from its findings.
- The comparison of the replicas is computed from their roots.

Each computed verdict is compared with the verdict in the bundle.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from agent.cli.evidence.bundle_reading import (
    Bundle,
    BundledFinding,
    BundledReplica,
    BundledRows,
    KnownTree,
)
from agent.cli.evidence.recorded_reads import contradiction, evidence_of, judged_again
from merkle.checksum import Algorithm, block_checksum
from merkle.diff import SummaryComparison, compare
from merkle.replica import TREE_STATES, BlockId, ChunkInfo
from merkle.tree import Leaf
from merkle.tree_building import TreeBuilder
from merkle.tree_summary import TreeSummary
from scanner.finding import DamageFault, Verdict

DAMAGE: Final = frozenset({Verdict.CORRUPT, Verdict.UNREADABLE})
CHUNK_FAULTS: Final = frozenset(
    {
        DamageFault.CHUNK_CHECKSUM,
        DamageFault.CHUNK_SHORT,
        DamageFault.CHUNK_MISSING,
        DamageFault.CHUNK_UNREADABLE,
    }
)
ROW_FAULTS: Final = frozenset({DamageFault.BLOCK_ROW_MISSING, DamageFault.BLOCK_ROW_DAMAGED})
WIRE_PREFIX: Final = "TREE_"  # prefix of algorithms in reports
NO_FILES: Final = "the bundle has no files of the replica: it is as the scan told"


class ReplayOutcome(StrEnum):
    """Result of comparing a recorded check result with the check result that was computed again."""

    SAME = "same"
    DIFFERS = "differs"
    UNVERIFIED = "unverified"  # the bundle has no evidence for or against the verdict


@dataclass(frozen=True, slots=True)
class ReplayedVerdict:
    """A recorded check result (verdict), and the outcome of computing it again.

    `why` names the evidence if both are equal. Otherwise, `why` describes the difference or the
    missing evidence.
    """

    place: str
    verdict: str
    outcome: ReplayOutcome
    why: str


def replay_verdicts(bundle: Bundle) -> Iterator[ReplayedVerdict]:
    """Yield an outcome for every check result in a bundle: first for each replica, then for the
    container."""
    for replica in bundle.replicas:
        yield from _Replay(replica, bundle.replicas).verdicts()
    yield _container(bundle)


class _Replay:
    """Computes the results of all checks of one replica again from a bundle."""

    def __init__(self, replica: BundledReplica, all_of_them: Sequence[BundledReplica]) -> None:
        self._replica = replica
        self._others = [one for one in all_of_them if one is not replica]
        self._tree = replica.tree
        self._rows = replica.rows or BundledRows({}, is_whole=False)
        self._findings = replica.findings or ()
        self._judged: set[BundledFinding] = set()
        self._by_place: dict[tuple[int, int], list[BundledFinding]] = {}
        for found in self._findings:
            self._by_place.setdefault((found.block_id, found.offset), []).append(found)

    def verdicts(self) -> Iterator[ReplayedVerdict]:
        """Yield an outcome for each check result: the tree, chunks and blocks, other findings, and
        the state."""
        for name, why in self._replica.missing.items():
            yield self._item(
                "", f"{name}.json", ReplayOutcome.UNVERIFIED, f"could not be had: {why}"
            )
        if self._tree is not None:
            yield self._root(self._tree)
            yield from self._chunks(self._tree)
        for found in self._findings:
            if found not in self._judged:
                yield self._judge_finding(found)
        if self._replica.report is not None:
            yield self._state(self._replica.report)

    def _item(self, place: str, verdict: str, outcome: ReplayOutcome, why: str) -> ReplayedVerdict:
        whose = f"{self._replica.datanode_id} {place}".rstrip()
        return ReplayedVerdict(whose, verdict, outcome, why)

    # Tree.

    def _root(self, tree: KnownTree) -> ReplayedVerdict:
        verdict = f"root {tree.root:016x}"
        if not tree.is_whole:
            return self._item(
                "tree", verdict, ReplayOutcome.UNVERIFIED, "not all leaves are in the bundle"
            )
        folded = fold(tree)
        report = self._replica.report or {}
        summary = report.get("tree") or {}
        if folded.root != tree.root:
            why = f"the blocks fold to {folded.root:016x}"
        elif wrong := _misfolded(tree):
            why = f"the leaves of block {wrong[0]} do not fold to its checksum"
        elif summary and int(summary["root"]) != tree.root:
            why = f"the replica reported root {int(summary['root']):016x}"
        else:
            return self._item("tree", verdict, ReplayOutcome.SAME, "the leaves fold to it")
        return self._item("tree", verdict, ReplayOutcome.DIFFERS, why)

    # Chunks.

    def _chunks(self, tree: KnownTree) -> Iterator[ReplayedVerdict]:
        """Yield a result for every chunk with a recorded or recomputed finding.

        Also yield one result with the number of intact chunks.
        """
        well_count = 0
        for block_id, chunks in self._rows.blocks.items():
            if block_id in tree.tombstones:
                continue
            if block_id not in tree.blocks:
                if tree.is_whole and chunks:
                    yield self._without_file(block_id, chunks)
                continue
            leaves = {leaf.offset: leaf for leaf in tree.blocks[block_id]}
            for chunk in chunks:
                leaf = leaves.pop(chunk.offset, None)
                items = list(self._chunk(tree.algorithm, block_id, chunk, leaf))
                well_count += not items
                yield from items
            for leaf in leaves.values():
                why = "no row describes this chunk"
                yield self._item(_place(block_id, leaf), "a leaf", ReplayOutcome.DIFFERS, why)
        yield from self._strays(tree)
        why = "their leaves are the folds of their rows"
        yield self._item("", f"{well_count} chunks OK", ReplayOutcome.SAME, why)

    def _chunk(
        self, algorithm: Algorithm, block_id: BlockId, chunk: ChunkInfo, leaf: Leaf | None
    ) -> Iterator[ReplayedVerdict]:
        """Yield an outcome for each finding about a chunk.

        If there is no finding, yield an outcome only if the new check finds damage, or if the leaf
        is unhealthy.
        """
        told = [
            found
            for found in self._by_place.get((block_id, chunk.offset), ())
            if found.fault in CHUNK_FAULTS and found.length_bytes == chunk.length_bytes
        ]
        medium = self._replica.medium.get((block_id, chunk.offset))
        is_marked = leaf is not None and not leaf.healthy
        place = _place(block_id, chunk)
        for found in told:
            seen = evidence_of(algorithm, chunk, leaf, medium, found)
            judgement = judged_again(chunk, seen)
            wrong = contradiction(chunk, found, judgement, seen)
            if not wrong and leaf is not None and is_marked == (judgement is None):
                wrong = "the leaf says otherwise"
            outcome = ReplayOutcome.DIFFERS if wrong else ReplayOutcome.SAME
            self._judged.add(found)
            yield self._item(place, _words(found), outcome, wrong or seen.basis)
        if not told and not self._covers(block_id):
            judgement = judged_again(chunk, evidence_of(algorithm, chunk, leaf, medium, None))
            if judgement is not None or is_marked:
                verdict = "an unhealthy leaf" if is_marked else "OK"
                why = "the leaf is the row's fold" if judgement is None else judgement.evidence
                why = f"{why}; nothing was found there"
                yield self._item(place, verdict, ReplayOutcome.DIFFERS, why)

    def _covers(self, block_id: int) -> bool:
        """Return whether a finding concerns all chunks of a block, because its file cannot be
        opened."""
        found = self._by_place.get((block_id, 0), ())
        return any(one.evidence.startswith("opening the file failed") for one in found)

    def _without_file(self, block_id: BlockId, chunks: Sequence[ChunkInfo]) -> ReplayedVerdict:
        """Return the result for a block that has a row but is not in the tree."""
        length_bytes = chunks[-1].end
        evidence = f"no file for {len(chunks)} chunks, {length_bytes} bytes"
        told = [
            found
            for found in self._findings
            if found.block_id == block_id and found.fault == DamageFault.BLOCK_FILE_MISSING
        ]
        place, verdict = f"block {block_id}", f"CORRUPT {DamageFault.BLOCK_FILE_MISSING.value}"
        if not told:
            why = "a row, and not in the tree; nothing was found there"
            return self._item(place, "OK", ReplayOutcome.DIFFERS, why)
        is_said = told[0].evidence.partition("; ")[0] == evidence  # the rest names the object there
        wrong = told[0].verdict != Verdict.CORRUPT or not is_said
        self._judged.update(told)
        outcome = ReplayOutcome.DIFFERS if wrong else ReplayOutcome.SAME
        return self._item(place, verdict, outcome, f"a row, and not in the tree: {evidence}")

    def _strays(self, tree: KnownTree) -> Iterator[ReplayedVerdict]:
        """Yield a result for each block that is in the tree but has no row.

        If the bundle does not have all rows, yield one result UNVERIFIED instead.
        """
        if not self._rows.is_whole:
            yield self._item(
                "", "other chunks", ReplayOutcome.UNVERIFIED, "not all rows are in the bundle"
            )
            return
        named = {found.block_id for found in self._findings if found.fault in ROW_FAULTS}
        for block_id in sorted(set(tree.blocks) - set(self._rows.blocks) - named):
            why = "in the tree without a row; nothing was found there"
            yield self._item(f"block {block_id}", "OK", ReplayOutcome.DIFFERS, why)

    # Other findings.

    def _judge_finding(self, found: BundledFinding) -> ReplayedVerdict:
        """Check a finding about a complete block or replica, as far as the evidence allows this."""
        place = f"block {found.block_id}" if found.block_id > 0 else "files"
        outcome, why = self._check_inputs(found)
        return self._item(place, _words(found), outcome, why)

    def _check_inputs(self, found: BundledFinding) -> tuple[ReplayOutcome, str]:
        chunks = self._rows.blocks.get(BlockId(found.block_id))
        if found.fault == DamageFault.BLOCK_FILE_MISSING and chunks and self._tree is not None:
            if found.block_id in self._tree.blocks:
                return ReplayOutcome.DIFFERS, "the tree has what was read of the block"
            return ReplayOutcome.SAME, "a row, and not in the tree"
        if found.fault in ROW_FAULTS and found.verdict in DAMAGE and found.block_id > 0:
            return self._without_row(found, chunks)
        if found.fault == DamageFault.TRAILING_BYTES and chunks:
            end = chunks[-1].end
            told = f"file of {end + found.length_bytes} bytes, block of {end}"
            is_so = (found.offset, found.evidence) == (end, told)
            return (
                ReplayOutcome.SAME if is_so else ReplayOutcome.DIFFERS
            ), f"the row ends at byte {end}"
        if found.verdict == Verdict.CONTRADICTORY:
            return self._contradicted(found, chunks)
        if found.fault in CHUNK_FAULTS and self._tree is not None and self._rows.is_whole:
            is_whole_block = found.offset == 0 and chunks and found.length_bytes == chunks[-1].end
            if not is_whole_block or not self._covers(found.block_id):
                return ReplayOutcome.DIFFERS, "no row describes this chunk"
        return ReplayOutcome.UNVERIFIED, NO_FILES

    def _without_row(
        self, found: BundledFinding, chunks: Sequence[ChunkInfo] | None
    ) -> tuple[ReplayOutcome, str]:
        if chunks is not None:
            return ReplayOutcome.DIFFERS, "its row is in the bundle"
        if not self._rows.is_whole:
            return ReplayOutcome.UNVERIFIED, "not all rows are in the bundle"
        has = [one.datanode_id for one in self._others if _has_row(one, found.block_id)]
        where = f"; {', '.join(has)} has it" if has else ""
        return ReplayOutcome.SAME, f"no row of it in the bundle{where}"

    def _contradicted(
        self, found: BundledFinding, chunks: Sequence[ChunkInfo] | None
    ) -> tuple[ReplayOutcome, str]:
        """Check a CONTRADICTORY finding. Return the outcome and an explanation.

        The outcome is SAME if another replica has a tombstone or a different row of the block.
        """
        for other in self._others:
            block_id = BlockId(found.block_id)
            theirs = other.rows.blocks.get(block_id) if other.rows is not None else None
            is_buried = other.tree is not None and found.block_id in other.tree.tombstones
            if is_buried or (theirs is not None and theirs != chunks):
                return ReplayOutcome.SAME, f"{other.datanode_id} has it otherwise"
        if all(other.rows is not None and other.rows.is_whole for other in self._others):
            return ReplayOutcome.DIFFERS, "no other replica has it otherwise"
        return ReplayOutcome.UNVERIFIED, "not all rows of the others are in the bundle"

    # Replica.

    def _state(self, report: Mapping[str, Any]) -> ReplayedVerdict:
        state, count = str(report["state"]), int(report["finding_count"])
        verdict = f"{state}, {count} findings"
        if self._replica.findings is None:
            return self._item(
                "replica", verdict, ReplayOutcome.UNVERIFIED, "its findings are not in the bundle"
            )
        damage = sum(found.verdict in DAMAGE for found in self._findings)
        if damage != count:
            why = f"{damage} findings of damage are in the bundle"
        elif damage and state != "UNHEALTHY":
            why = "with damage it is UNHEALTHY"
        else:
            return self._item("replica", verdict, ReplayOutcome.SAME, "that is what was found")
        return self._item("replica", verdict, ReplayOutcome.DIFFERS, why)


def _place(block_id: int, chunk: ChunkInfo | Leaf) -> str:
    return f"block {block_id} bytes {chunk.offset} to {chunk.end - 1}"


def _words(found: BundledFinding) -> str:
    return f"{found.verdict} {found.fault}"


def _has_row(replica: BundledReplica, block_id: int) -> bool:
    return replica.rows is not None and BlockId(block_id) in replica.rows.blocks


def fold(tree: KnownTree) -> TreeSummary:
    """Rebuild a tree from its leaves and tombstones, and return its summary."""
    builder = TreeBuilder(tree.algorithm)
    for block_id in sorted(tree.blocks):
        builder.add_block(block_id)
        for leaf in tree.blocks[block_id]:
            builder.add_leaf(leaf)
    for block_id, checksum in tree.tombstones.items():
        builder.add_tombstone(block_id, checksum)
    return builder.build(tree.generation).summary()


def _misfolded(tree: KnownTree) -> list[int]:
    """Return the ids of the blocks whose checksum in the tree does not match their leaves."""
    return [
        block_id
        for block_id, leaves in tree.blocks.items()
        if tree.block_checksums[block_id]
        != block_checksum(tree.algorithm, BlockId(block_id), [leaf.checksum for leaf in leaves])
    ]


def _container(bundle: Bundle) -> ReplayedVerdict:
    """Compare the roots that the replicas had reported to the SCM again, and return the result."""
    told = str(bundle.container["checksums"])
    is_coded = bool(bundle.container["scheme"])
    reports = [item["replica"] for item in bundle.container["replicas"]]
    by_index: dict[int, list[TreeSummary | None]] = {}
    for report in reports:
        trees = by_index.setdefault(int(report["replica_index"]) if is_coded else 0, [])
        trees.append(_summary(report) if report["state"] in TREE_STATES else None)
    again = {_compared(trees) for trees in by_index.values()}
    if "differ" in again:
        now = "differ"
    elif "unknown" in again or not again:
        now = "unknown"
    else:
        now = "shards" if is_coded else "match"
    outcome = ReplayOutcome.SAME if now == told else ReplayOutcome.DIFFERS
    why = f"by the roots that were reported: {now}{_later(bundle, reports)}"
    return ReplayedVerdict("container", told, outcome, why)


def _summary(report: Mapping[str, Any]) -> TreeSummary | None:
    """Return the summary of the tree in a replica's report. Return None if the report has no
    tree."""
    tree = report.get("tree")
    if tree is None:
        return None
    return TreeSummary(
        algorithm=Algorithm[tree["algorithm"].removeprefix(WIRE_PREFIX)],
        root=int(tree["root"]),
        generation=int(tree["generation"]),
        block_count=int(tree["block_count"]),
        tombstone_count=int(tree["tombstone_count"]),
        tombstones_checksum=int(tree["tombstones_checksum"]),
    )


def _compared(trees: Sequence[TreeSummary | None]) -> str:
    known = [tree for tree in trees if tree is not None]
    answers = {compare(known[0], tree) for tree in known[1:]}
    if answers & {SummaryComparison.DIFFERENT, SummaryComparison.TOMBSTONES_DIFFER}:
        return "differ"
    if len(known) != len(trees) or SummaryComparison.NOT_COMPARABLE in answers:
        return "unknown"
    return "match"


def _later(bundle: Bundle, reports: Sequence[Mapping[str, Any]]) -> str:
    """Return a text that names the replicas whose roots are not yet reported to the SCM.

    Return "" if all roots are reported.
    """
    reported = {int(report["tree"]["root"]) for report in reports if report.get("tree")}
    moved = [one for one in bundle.replicas if one.tree and one.tree.root not in reported]
    names = ", ".join(one.datanode_id for one in moved)
    return f"; not yet reported: the root of {names}" if moved else ""
