"""Small clusters with lying, damaged and silent datanodes, and the oracle that judges repairs.

A seed determines the data of each replica, which datanodes lie about which blocks, and which are
damaged. The stores, the scans and the reconciler are real. Peers answer in this process, through
the wire's own pages. The oracle judges from the drawn facts and from the bytes in the block files,
never from the planner's result:

- A replica whose row is intact has the bytes of that row, or the bytes it had before.
- Bytes that verified before are still there, unless their delete was ordered, or every other holder
  had carried it out.
- A block whose row is lost gets the bytes of all datanodes that have it healthy, up or down.
  Otherwise it is left unchanged.
- Every remaining problem is reported: as an outcome, and a contradiction also as a finding.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np

from agent.leases import ContainerLeases
from agent.plan.actions import ConfirmedDeletes
from agent.plan.reconcile_outcome import ChunkResult, ReconcileResult
from agent.reconcile.reconciler import Reconciler
from agent.reconcile.survey import SilentHolder
from agent.scan.container_scan import StoreScanDeps, VerdictBreaker, scan_container
from agent.services import report_messages
from agent.store.index.transactions import IndexChange
from agent.store.replica_store import ReplicaStore
from merkle.checksum import leaf_checksum, window_checksums
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo, ContainerId
from merkle.tree import Leaf, Tree
from merkle.tree_building import TreeBuilder
from scanner.finding import Verdict
from suture.errors import Code, RefusedError, UnavailableError
from suture.wire.mapping import tree_pages
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stores import open_store, options_of_test

WINDOW_BYTES: Final = 512
CHUNK_BYTES: Final = 700
NODES_MAX: Final = 4
HURTS: Final = ("flip", "lost file", "lost row", "flip and lost row")

Said = tuple[bytes, ...]
"""The chunks of a block, as the row of one replica has them."""


@dataclass(slots=True)
class Copy:
    """One block of one replica: the drawn facts, and its present state."""

    written: Said  # under its own row
    hurt: str = ""
    claimed: Said | None = None  # its claim to peers instead, with a matching tree
    is_deleted: bool = False
    flipped: int = -1  # which of its chunks has a flipped bit

    @property
    def has_row(self) -> bool:
        """Return True if its own row is intact."""
        return "row" not in self.hurt and not self.is_deleted

    @property
    def told(self) -> dict[int, bytes]:
        """The chunks that it reports to its peers as intact, by offset."""
        if self.is_deleted:
            return {}
        if self.claimed is not None:
            return by_offset(self.claimed)
        if self.hurt and self.hurt != "flip":
            return {}
        whole = enumerate(by_offset(self.written).items())
        return dict(chunk for number, chunk in whole if number != self.flipped)


def by_offset(said: Said) -> dict[int, bytes]:
    """Return chunks by their offsets."""
    return dict(zip(accumulate(map(len, said), initial=0), said, strict=False))


def differ(one: dict[int, bytes], other: dict[int, bytes]) -> bool:
    """Return True if a chunk of one overlaps a different chunk of the other."""
    return any(
        mine < theirs + len(there) and theirs < mine + len(here) and (mine, here) != (theirs, there)
        for mine, here in one.items()
        for theirs, there in other.items()
    )


@dataclass(slots=True)
class Node:
    """One datanode of all clusters: its store, and its state in the present cluster."""

    name: str
    store: ReplicaStore
    tools: StoreScanDeps
    copies: dict[BlockId, Copy] = field(default_factory=dict)
    is_down: bool = False
    has_reported: bool = True  # True if the control plane knows its root

    def bytes_of(self, container_id: ContainerId, block_id: BlockId) -> bytes | None:
        """Return the content of the block's file; None without one."""
        path = self.store.paths(container_id).block_file(block_id)
        return path.read_bytes() if path.exists() else None


@dataclass(slots=True)
class Judgement:
    """The counts and violations of all clusters."""

    counts: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


class NearPeer:
    """A datanode as its peers see it, without a socket. Some of them lie."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def tree(self, container_id: ContainerId) -> Tree:
        """Return its tree, or its forged tree."""
        tree = self._node.store.view(container_id).tree()
        claims = {b: c.claimed for b, c in self._node.copies.items() if c.claimed is not None}
        if not claims:
            return tree
        builder = TreeBuilder(tree.algorithm)
        for block_id in sorted({*map(BlockId, tree.block_ids.tolist()), *claims}):
            index = tree.index_of(block_id)
            if index >= 0 and tree.deleted[index]:
                builder.add_tombstone(block_id, int(tree.block_checksums[index]))
                continue
            builder.add_block(block_id)
            claimed = claims.get(block_id)
            leaves = tree.leaves_at(index) if claimed is None else leaves_of(tree, claimed)
            for leaf in leaves:
                builder.add_leaf(leaf)
        return builder.build(tree.generation)

    def _pages(self, container_id: ContainerId, **asked: Any) -> Iterator[pb.HashesPage]:
        if self._node.is_down:
            raise UnavailableError(Code.UNAVAILABLE, f"{self._node.name} is down")
        request = pb.GetContainerHashesRequest(container_id=container_id, **asked)
        return tree_pages.pages(self.tree(container_id), tree_pages.parse_selection(request))

    def summary(self, container_id: ContainerId, _meter: object = None) -> Any:
        """As `Peer.summary`."""
        return tree_pages.read_summary(self._pages(container_id, level=pb.ROOT))

    def blocks(self, container_id: ContainerId, _ranges: object = (), **_: object) -> Any:
        """As `Peer.blocks`; these containers are too small for ranges."""
        return tree_pages.read_blocks(self._pages(container_id, level=pb.BLOCKS))

    def chunks(self, container_id: ContainerId, block_ids: Any, _meter: object = None) -> Any:
        """As `Peer.chunks`."""
        wanted = np.asarray(block_ids).tolist()
        return tree_pages.read_tree(self._pages(container_id, level=pb.CHUNKS, block_ids=wanted))

    def block(self, container_id: ContainerId, block_id: BlockId, _meter: object = None) -> Any:
        """As `Peer.block`."""
        copy = self._node.copies[block_id]
        if copy.claimed is not None:
            return BlockData(block_id, Bcsid(block_id), chunks_of(copy.claimed))
        return self._node.store.view(container_id).block(block_id)

    def read_chunk(
        self, container_id: ContainerId, block_id: BlockId, offset: int, _meter: object = None
    ) -> tuple[ChunkInfo, bytes]:
        """As `Peer.read_chunk`, which rejects bytes that do not match the checksums in the
        answer."""
        block = self.block(container_id, block_id)
        [chunk] = [one for one in block.chunks if one.offset == offset]
        claimed = self._node.copies[block_id].claimed
        data = (
            self._node.store.view(container_id).read(block_id, offset, chunk.length_bytes)
            if claimed is None
            else b"".join(claimed)[offset : chunk.end]
        )
        if window_checksums(chunk.checksum_type, WINDOW_BYTES, data) != chunk.window_checksums:
            raise RefusedError(Code.CHECKSUM_MISMATCH, "the bytes do not have their checksums")
        return chunk, data

    def replica(self, container_id: ContainerId) -> Any:
        """As `Peer.replica`."""
        return report_messages.replica_report(self._node.store.replica(container_id))


def chunks_of(said: Said) -> tuple[ChunkInfo, ...]:
    """Return the chunks that the row of these bytes has."""
    chunks, offset = [], 0
    for data in said:
        sums = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, data)
        chunks.append(ChunkInfo(offset, len(data), ChecksumType.CRC32C, WINDOW_BYTES, sums))
        offset += len(data)
    return tuple(chunks)


def leaves_of(tree: Tree, said: Said) -> list[Leaf]:
    """Return the leaves that these bytes have in a tree of this algorithm."""
    return [
        Leaf(
            chunk.offset,
            chunk.length_bytes,
            leaf_checksum(tree.algorithm, chunk.offset, chunk.length_bytes, chunk.window_checksums),
        )
        for chunk in chunks_of(said)
    ]


class Liars:
    """Clusters, one after the other. Each is a container of its own on the same stores."""

    def __init__(self, root: Path, executor: ThreadPoolExecutor) -> None:
        self._executor = executor
        self._leases = ContainerLeases()
        self.judgement = Judgement()
        self._all = []
        for number in range(1, NODES_MAX + 1):
            store = open_store(root / f"dn{number}", options=options_of_test())
            tools = StoreScanDeps(
                store=store,
                leases=self._leases,
                guard=VerdictBreaker(),
            )
            self._all.append(Node(f"dn{number}", store, tools))

    def close(self) -> None:
        """Close the stores."""
        for node in self._all:
            node.store.close()

    def live(self, seed: int) -> None:
        """Draw a cluster, let each node that is up reconcile twice, and judge the result."""
        cluster = _Cluster(self, Random(seed), ContainerId(seed + 1))
        cluster.draw()
        for _ in range(2):
            for node in cluster.dice.sample(cluster.up, len(cluster.up)):
                cluster.reconcile(node)
        self.judgement.counts["clusters"] += 1
        for node in cluster.nodes:
            node.store.delete_container(cluster.container_id, force=True)


class _Cluster:
    """One container on two to four nodes."""

    def __init__(self, liars: Liars, dice: Random, container_id: ContainerId) -> None:
        self.dice = dice
        self.container_id = container_id
        self._liars = liars
        self._judgement = liars.judgement
        self.nodes = liars._all[: dice.choice((2, 3, 3, 3, 4))]
        self.block_ids = [BlockId(number) for number in range(1, dice.randint(2, 4))]
        self.ordered: frozenset[BlockId] = frozenset()
        self.kept: frozenset[BlockId] = frozenset()

    @property
    def up(self) -> list[Node]:
        """The nodes that answer."""
        return [node for node in self.nodes if not node.is_down]

    # Drawing.

    def draw(self) -> None:
        """Write, lie, damage, delete, and take nodes down; then scan all replicas."""
        for node in self.nodes:
            node.copies = {}
            node.is_down, node.has_reported = False, self.dice.random() < 0.5
        for block_id in self.block_ids:
            self._draw_block(block_id)
        for node in self.nodes:
            self._write(node)
        self._draw_deletes()
        for node in self.nodes:
            self._hurt(node)
            scan_container(node.tools, self.container_id)
        for node in self.dice.sample(
            self.nodes, self.dice.choice((0, 0, 1, 1, len(self.nodes) - 2))
        ):
            node.is_down = True

    def _draw_block(self, block_id: BlockId) -> None:
        lengths = [CHUNK_BYTES] * self.dice.randint(1, 2)
        truth = tuple(self.dice.randbytes(length) for length in lengths)
        lie = (
            tuple(self.dice.randbytes(length) for length in lengths)
            if self.dice.random() < 0.8
            else (self.dice.randbytes(sum(lengths) - 100), self.dice.randbytes(100))
        )
        for node in self.nodes:
            way = self.dice.choice(("honest",) * 5 + ("wrong row", "wrong row", "forged tree"))
            copy = Copy(lie if way == "wrong row" else truth)
            copy.claimed = lie if way == "forged tree" else None
            if self.dice.random() < 0.4:
                copy.hurt = self.dice.choice(HURTS)
            node.copies[block_id] = copy
            self._judgement.counts[way] += 1

    def _write(self, node: Node) -> None:
        store = node.store
        store.create_container(self.container_id)
        for block_id, copy in node.copies.items():
            chunks = chunks_of(copy.written)
            for chunk, data in zip(chunks, copy.written, strict=True):
                store.writer(self.container_id).write_chunk(block_id, chunk, data)
            block = BlockData(block_id, Bcsid(block_id), chunks)
            store.writer(self.container_id).put_block(block)
        store.close_container(self.container_id, bcsid=0, force=True)

    def _draw_deletes(self) -> None:
        """Delete some blocks on some nodes, by order or without one."""
        for block_id in self.block_ids:
            fate = self.dice.choice(("kept",) * 6 + ("ordered", "tombstone", "tombstones"))
            if fate == "kept":
                continue
            self._judgement.counts[fate] += 1
            if fate == "ordered":
                self.ordered |= {block_id}
            elif self.dice.random() < 0.5:
                self.kept |= {block_id}
            count = len(self.nodes) - 1 if fate == "tombstones" else 1
            for node in self.dice.sample(self.nodes, count):
                remove_blocks(node.store, self.container_id, [block_id])
                node.copies[block_id].is_deleted = True

    def _hurt(self, node: Node) -> None:
        for block_id, copy in node.copies.items():
            if copy.is_deleted:
                copy.hurt = ""
            path = node.store.paths(self.container_id).block_file(block_id)
            self._judgement.counts[copy.hurt or "unhurt"] += 1
            if "flip" in copy.hurt:
                data = bytearray(path.read_bytes())
                at = self.dice.randrange(len(data))
                data[at] ^= 1 << self.dice.randrange(8)
                path.write_bytes(bytes(data))
                copy.flipped = sum(offset <= at for offset in by_offset(copy.written)) - 1
            if "file" in copy.hurt:
                path.unlink()
            if "row" in copy.hurt:
                index = node.store.volume_set.places[self.container_id].index
                index.write(partial(self._lose_row, block_id))

    def _lose_row(self, block_id: BlockId, rows: IndexChange) -> None:
        rows.delete_block(self.container_id, block_id)

    # Reconciling.

    def reconcile(self, node: Node) -> None:
        """Let one node reconcile with all others, as on a command of the control plane."""
        before = {b: node.bytes_of(self.container_id, b) for b in self.block_ids}
        others = [other for other in self.nodes if other is not node]
        # Some of the nodes that are down are known to be down; these are named as silent holders.
        named = {other.name for other in others if other.is_down and self.dice.random() < 0.7}
        reconciler = Reconciler(
            node.store,
            self._liars._leases,
            self._liars._executor,
            scan=lambda container_id: scan_container(node.tools, container_id),
            now_ms=lambda: 1_700_000_000_000,
            confirm=lambda _id, asked: ConfirmedDeletes(
                self.ordered & set(asked), self.kept & set(asked)
            ),
        )
        result = reconciler.reconcile(
            self.container_id,
            {other.name: NearPeer(other) for other in others if other.name not in named},  # type: ignore[misc]
            holders=[self._holder(other) for other in others if other.name in named],
        )
        self._judgement.counts["reconciles"] += 1
        for block_id in self.block_ids:
            self._judge(node, block_id, before[block_id], result)

    def _holder(self, other: Node) -> SilentHolder:
        tree = NearPeer(other).tree(self.container_id).summary() if other.has_reported else None
        return SilentHolder(other.name, tree)

    # Judging.

    def _judge(
        self, node: Node, block_id: BlockId, before: bytes | None, result: ReconcileResult
    ) -> None:
        copy, after = node.copies[block_id], node.bytes_of(self.container_id, block_id)
        where = f"container {self.container_id}, block {block_id} of {node.name}"
        if copy.is_deleted:
            self._check(after is None, f"{where}: came back")
            return
        if node.store.view(self.container_id).tombstones().get(block_id) is not None:
            self._check(self._may_bury(node, block_id), f"{where}: buried on a peer's word")
            copy.is_deleted, copy.hurt = True, ""
            self._judgement.counts["deletes followed"] += 1
            return
        if copy.has_row:
            self._judge_recorded(copy, before, after, where)
        self._judge_adopted(node, block_id, after or b"", where)
        self._judge_report(node, block_id, result, where)

    def _judge_recorded(
        self, copy: Copy, before: bytes | None, after: bytes | None, where: str
    ) -> None:
        """Check that the block has the bytes of its intact row, or the bytes it had before."""
        is_whole = True
        for offset, data in by_offset(copy.written).items():
            there = (after or b"")[offset : offset + len(data)]
            was = (before or b"")[offset : offset + len(data)]
            self._check(was != data or there == data, f"{where}: verifying bytes were replaced")
            self._check(there in {data, was, b""}, f"{where}: bytes that contradict an intact row")
            is_whole &= there == data
        if copy.hurt and is_whole:
            copy.hurt, copy.flipped = "", -1
            self._judgement.counts["repaired"] += 1

    def _judge_adopted(self, node: Node, block_id: BlockId, after: bytes, where: str) -> None:
        """Check adopted chunks, for which the node had no row: all holders must agree on them, and
        none may have been silent."""
        copy = node.copies[block_id]
        known = by_offset(copy.written) if copy.has_row else {}
        if block_id not in {b.block_id for b in node.store.view(self.container_id).blocks()}:
            return
        chunks = node.store.view(self.container_id).block(block_id).chunks
        adopted = {c.offset: after[c.offset : c.end] for c in chunks if c.offset not in known}
        if not adopted:
            return
        others = [other for other in self.nodes if other is not node]
        told = [other.copies[block_id].told for other in others]
        silent = [other for other in others if other.is_down and not other.has_reported]
        contested = any(differ(one, other) for one in told for other in told)
        self._check(not contested, f"{where}: one of several versions was adopted")
        self._check(not silent, f"{where}: adopted though {len(silent)} holders were silent")
        for offset, data in adopted.items():
            has = [one for one in told if one.get(offset) == data]
            self._check(bool(has), f"{where}: adopted what nobody has")
        fits = [c for c in chunks if c.offset in adopted] == chunks_of_offsets(adopted)
        self._check(fits, f"{where}: a row that does not fit its bytes")
        written = tuple(after[c.offset : c.end] for c in chunks)
        node.copies[block_id] = Copy(written, claimed=copy.claimed)
        self._judgement.counts["adopted"] += 1

    def _judge_report(
        self, node: Node, block_id: BlockId, result: ReconcileResult, where: str
    ) -> None:
        """Check that every remaining problem was reported."""
        copy = node.copies[block_id]
        peers = [other for other in self.up if other is not node]
        told = [other.copies[block_id].told for other in peers]
        claims = any(other.copies[block_id].is_deleted for other in peers)
        own = by_offset(copy.written)
        contradicts = (
            any(differ(own, one) for one in told)
            if copy.has_row
            else any(differ(one, other) for one in told for other in told)
        )
        findings = node.store.findings(self.container_id)
        if contradicts or claims:
            found = [f for f in findings if f.verdict is Verdict.CONTRADICTORY]
            is_told = block_id in {finding.block_id for finding in found}
            self._check(is_told, f"{where}: a contradiction that no finding tells")
            count = node.store.replica(self.container_id).contradiction_count
            self._check(count == len(found), f"{where}: {count} contradictions are counted")
            self._judgement.counts["contradictions told"] += 1
        if copy.hurt:
            left = {c.block_id for c in result.chunks if c.result is ChunkResult.SKIPPED}
            left |= {finding.block_id for finding in findings}
            self._check(block_id in left, f"{where}: damage that nobody tells")
            self._judgement.counts["damage left and told"] += 1

    def _may_bury(self, node: Node, block_id: BlockId) -> bool:
        if block_id in self.ordered:
            return True
        others = [other for other in self.nodes if other is not node]
        all_buried = all(other.copies[block_id].is_deleted for other in others)
        silent = [one for one in others if one.is_down and not one.has_reported]
        return all_buried and len(others) > 1 and not silent and block_id not in self.kept

    def _check(self, is_right: bool, what: str) -> None:
        if not is_right:
            self._judgement.broken.append(what)


def chunks_of_offsets(placed: dict[int, bytes]) -> list[ChunkInfo]:
    """Return the chunks that the row of the bytes at these offsets has."""
    return [chunks_of((data,))[0]._replace(offset=offset) for offset, data in placed.items()]


@contextmanager
def liars(root: Path) -> Iterator[Liars]:
    """Yield clusters on stores below `root`."""
    with ThreadPoolExecutor(4) as executor:
        made = Liars(root, executor)
        try:
            yield made
        finally:
            made.close()
