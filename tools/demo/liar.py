"""The demo's liar: a replica with wrong bytes and with a block record that matches these bytes.

The same chunk is different in the three replicas. In the first, it is correct. In the second, it
has a flipped bit, and the block record is intact. In the third, it is wrong, and the block record
matches it: this is the lie. A scan cannot find the lie; only a comparison of replicas can.

The container is scanned, planned and reconciled. The flipped bit is repaired, and an operator
decides about the contradiction.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from merkle.replica import ContainerId
from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import SourceFile
from suture.terminal.transient_refusals import until_decided
from suture.wire.v1 import scm_pb2
from tools.demo.damage import Target, flip_bit_under_warm_cache, rewrite_with_row
from tools.demo.damage_choice import BLOCK_BYTES_MIN, Harm, target_of
from tools.demo.readback import Checksums, source_checksums
from tools.demo.stage import Stage, is_whole, wait_until

PREFIX: Final = "contested/"
FILES: Final = 2  # the smallest files, which together fit into one container
CONTRADICTORY: Final = "CONTRADICTORY"


@dataclass(slots=True)
class Contest:
    """A container whose replicas contradict each other, and the outcome."""

    container_id: int = 0
    block_id: int = 0
    right_id: str = ""  # the datanode with the right replica
    targets: dict[str, Target] = field(default_factory=dict)  # the chunk, by datanode id
    flip: Harm | None = None
    lie: Harm | None = None
    right_bytes: bytes = b""
    wrong_bytes: bytes = b""
    checksums: Checksums = field(default_factory=dict)
    repaired_from: list[str] = field(default_factory=list)
    repaired_bytes: int = 0
    reported_by: list[str] = field(default_factory=list)  # datanodes with the finding
    headline: str = ""  # of `suture status`, before the decision
    replaced_bytes: int = 0  # by an operator's decision

    @property
    def flip_id(self) -> str:
        """The datanode whose replica has a flipped bit."""
        return self.flip.datanode_id if self.flip else ""

    @property
    def lie_id(self) -> str:
        """The datanode whose replica lies."""
        return self.lie.datanode_id if self.lie else ""

    def chunk_of(self, datanode_id: str) -> bytes:
        """Return the bytes of the contested chunk on a datanode's disk."""
        target = self.targets[datanode_id]
        return target.block_file().read_bytes()[: target.chunk_bytes[0]]


def store(client: ClusterClient, sources: Sequence[SourceFile]) -> Contest:
    """Store some of the sources again, in a separate container."""
    wanted = smallest_of(sources, PREFIX)
    stored, [container_id, *_] = client.put(wanted, lanes=1, close=True)
    return Contest(container_id=container_id, checksums=source_checksums(wanted, stored))


def smallest_of(sources: Sequence[SourceFile], prefix: str) -> list[SourceFile]:
    """Return the smallest files that are large enough to damage, with `prefix` in their keys."""
    large = [source for source in sources if source.size_bytes >= BLOCK_BYTES_MIN]
    smallest = sorted(large, key=lambda source: source.size_bytes)[:FILES]
    return [replace(source, key=prefix + source.key) for source in smallest]


def harm(contest: Contest, stage: Stage) -> None:
    """Flip a bit in one replica, and make another replica lie about the same chunk.

    The agent of the lying replica is stopped during the change, because it may have the earlier
    block record in memory.
    """
    [info] = stage.infos_of([contest.container_id])
    right, flipped, liar = (item.datanode.datanode_id for item in info.replicas)
    blocks = stage.peer(right).blocks_of(ContainerId(info.container_id))
    block = max(blocks, key=lambda one: one.length_bytes)
    contest.targets = {
        item.datanode.datanode_id: target_of(
            stage.cluster, stage.indexes, info.container_id, item, [block]
        )
        for item in info.replicas
    }
    contest.block_id = block.block_id
    contest.right_id, contest.right_bytes = right, contest.chunk_of(right)
    contest.flip = Harm(flipped, flip_bit_under_warm_cache(contest.targets[flipped]))

    index = stage.indexes[liar]
    stage.cluster.nodes[index].stop()
    contest.lie = Harm(liar, rewrite_with_row(contest.targets[liar]))
    contest.wrong_bytes = contest.chunk_of(liar)
    stage.cluster.start_again(index)
    wait_until(lambda: stage.is_heard(liar), "the datanode of the liar is back")


def note_repair(contest: Contest, outcomes: Sequence[scm_pb2.Outcome]) -> None:
    """Record how the reconcile handled the flipped bit."""
    chunks = [
        chunk
        for outcome in outcomes
        if outcome.status.container_id == contest.container_id
        and outcome.datanode_id == contest.flip_id
        for chunk in outcome.status.reconcile.chunks
        if chunk.result == "repaired" and chunk.local_id == contest.block_id
    ]
    contest.repaired_from = sorted({chunk.source for chunk in chunks})
    contest.repaired_bytes = sum(chunk.length for chunk in chunks)


def judge(contest: Contest, stage: Stage, outcomes: Sequence[scm_pb2.Outcome]) -> Iterator[str]:
    """Order another reconcile of all three replicas; yield the deviations from the expected result.

    The flipped bit must be repaired from the right replica. The lie must not be copied to any
    replica. Each datanode that sees the contradiction must report it.
    """
    request = scm_pb2.ReconcileContainersRequest(container_ids=[contest.container_id])
    [decision] = until_decided(stage.client.scm.reconcile_containers, request).decisions
    again = stage.outcomes_of(decision.command_ids)
    note_repair(contest, [*outcomes, *again])
    if contest.repaired_from != [contest.right_id]:
        yield f"the flipped bit was repaired from {contest.repaired_from or 'nobody'}"
    for datanode_id in (contest.right_id, contest.flip_id):
        if contest.chunk_of(datanode_id) != contest.right_bytes:
            yield f"{datanode_id} no longer has what was written in block {contest.block_id}"
    if contest.chunk_of(contest.lie_id) != contest.wrong_bytes:
        yield f"{contest.lie_id} was overwritten though its bytes verify and nobody asked for it"

    contest.reported_by = sorted(d for d in contest.targets if reports(contest, stage, d))
    if contest.lie_id not in contest.reported_by or len(contest.reported_by) < 2:
        yield f"only {contest.reported_by or 'nobody'} reported the contradiction"
    contest.headline = headline_with(stage, "contradict")


def headline_with(stage: Stage, words: str) -> str:
    """Wait until the first line of `suture status` contains these words; return it."""
    lines: list[str] = []

    def is_said() -> bool:
        lines[:] = [str(stage.suture("status")["summary"])]
        return words in lines[0]

    wait_until(is_said, f"suture status says {words!r}")
    return lines[0]


def reports(contest: Contest, stage: Stage, datanode_id: str) -> bool:
    """Return True if a datanode has a finding about the contradiction."""
    found = stage.peer(datanode_id).findings(ContainerId(contest.container_id))
    return any(
        finding.verdict == CONTRADICTORY and finding.local_id == contest.block_id
        for finding in found
    )


def decide(contest: Contest, stage: Stage) -> Iterator[str]:
    """Run `suture reconcile --trust` with the correct replica; yield the problems that remain."""
    shown = stage.suture(
        "reconcile", str(contest.container_id), "--trust", contest.right_id, "--yes"
    )
    changes = {
        one["datanode_id"]: one["changes"] for one in shown["replicas"] if one["change_count"]
    }
    if set(changes) != {contest.lie_id}:
        yield f"trusting {contest.right_id} changed {sorted(changes) or 'nobody'}"
    contest.replaced_bytes = sum(
        change["length_bytes"]
        for change in changes.get(contest.lie_id, [])
        if change["length_bytes"] > 0
    )

    def is_over() -> bool:
        [info] = stage.infos_of([contest.container_id])
        return is_whole(info) and not any(
            item.replica.contradiction_count for item in info.replicas
        )

    wait_until(is_over, "the contradiction is over")
    for datanode_id in contest.targets:
        if contest.chunk_of(datanode_id) != contest.right_bytes:
            yield f"{datanode_id} does not have what was written in block {contest.block_id}"
