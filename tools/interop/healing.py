"""Moves containers in a real Ozone cluster with two agents, and heals damage there.

    moved      an Ozone datanode pushes a container to an agent, an agent pulls it from another; an
               agent pushes it to an Ozone datanode, an Ozone datanode pulls it from an agent
    damaged    a copy at an agent, a copy at an Ozone datanode that only agents can help, a shard
               of an erasure-coded container at an agent, another at an Ozone datanode
    healed     by reconciles that the SCM orders, or by its replication manager; reports by which

A round is one order to reconcile, or one round of the replication manager. The moved bytes are
those that an agent fetched of a copy, or the size of a rebuilt shard.

Exits 1 if something is not healed or differs from before. Exits 0 also if no cluster is available,
and says why. `--json` prints one document.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from merkle.replica import BlockData, BlockId, ContainerId
from ozone.clients.datanode import Datanode
from suture.wire.clients.peer import Peer
from tools.interop.agents import awaited
from tools.interop.cluster import Block, Ozone
from tools.interop.mixed_cluster import COPIES, Mixed, judged, parser_of, spaced
from tools.interop.scrub import flip

COPIED: Final = 4 * (40_000, 700_000, 3_000_000)  # bytes of the keys with three copies
CODED: Final = (7 * 1024**2 + 12_345, 100)  # two stripes and a part; one cell
INDEXES: Final = frozenset(range(1, 6))
ROUND_S: Final = 20.0  # for an order to be carried out, before it is repeated
ROUNDS_MAX: Final = 6
SPOILED_BYTES: Final = 4096
HEADS: Final = ("what was damaged", "where", "healed by", "bytes", "moved", "rounds", "whole")


@dataclass(frozen=True, slots=True)
class Move:
    """A replica that was moved from one datanode to another with the same root. `index` is the
    index of the shard, or 0 if the container is replicated."""

    how: str
    source: str
    target: str
    index: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Healed:
    """A damage and its repair. `moved_bytes` is 0 if Ozone does not report the moved bytes. If
    `is_whole`, the replica has its earlier bytes again."""

    what: str
    where: str
    by: str
    damaged_bytes: int
    moved_bytes: int
    rounds: int
    is_whole: bool


class Story(Mixed):
    """A trial that moves containers in one cluster, and repairs damage."""

    def __init__(self, ozone: Ozone, place: Path, ends: ExitStack, is_quiet: bool) -> None:
        super().__init__(ozone, place, ends, is_quiet=is_quiet)
        self._copied: list[Block] = []
        self._coded: Block = (0, 0)
        self.moves: list[Move] = []
        self.healed: list[Healed] = []

    def steps(self) -> Iterator[Callable[[], None]]:
        """Return the steps: move containers, then damage and repair each kind of replica."""
        yield from (self.fill, self.move, self.move_shard, self.heal_copy_at_agent,
                    self.heal_copy_at_ozone, self.heal_shard_at_agent, self.heal_shard_at_ozone,
                    self.look_back)  # fmt: skip

    def told(self) -> Mapping[str, Any]:
        """Return the moves and the repairs."""
        return {
            "moves": [asdict(move) for move in self.moves],
            "healed": [asdict(row) for row in self.healed],
        }

    def table(self) -> str:
        """Return the repairs as a table."""
        return spaced(HEADS, [_cells(row) for row in self.healed], frozenset({3, 4, 5}))

    # storing

    def fill(self) -> None:
        """Write keys: some with three copies on Ozone's datanodes, some erasure-coded over these
        and an agent."""
        first = self._join()
        for number, size_bytes in enumerate(COPIED):
            key = f"copied{number}"
            self._copied += self._ozone.write(key, size_bytes, number)
            self._keys[key] = (size_bytes, number)
        coded = []
        for number, size_bytes in enumerate(CODED, start=len(COPIED)):
            key = f"coded{number}"
            coded += self._ozone.write(key, size_bytes, number, how="coded")
            self._keys[key] = (size_bytes, number)
        self._coded = coded[0]
        self._join()
        containers = [container for container, _ in self._copied]  # Ozone fills several at a time
        most = max(set(containers), key=containers.count)
        self._copied = [block for block in self._copied if block[0] == most]
        self._close(most, COPIES)
        self._close(self._coded[0], len(INDEXES))
        shards = self._scm.shards(self._coded[0])
        self.tell(
            f"container {self._coded[0]}, rs-3-2-1024k: shards",
            ", ".join(f"{index} {self._name(uuid)}" for uuid, (_, index) in shards.items()),
            first.datanode_id in shards and {i for _, i in shards.values()} == INDEXES,
        )

    # moving

    def move(self) -> None:
        """Push and pull a container from Ozone to an agent, and back."""
        container = self._copied[0][0]
        one, two = (agent.datanode_id for agent in self._agents)
        there = list(self._scm.replicas(container))
        (spare,) = {node.datanode_id for node in self._nodes} - set(there)
        self._move("push", container, there[0], one)
        self._move("pull", container, there[1], two)
        self._move("push", container, one, spare)
        self._drop(container, there[2])
        awaited("dropped", lambda: self._are_gone(container, there[2]))
        self._move("pull", container, two, there[2])

    def move_shard(self) -> None:
        """Push a shard from a datanode of Ozone to the agent without a shard, and pull it back."""
        container, two = self._coded[0], self._agents[1]
        there = next(uuid for uuid in self._scm.shards(container) if not self._is_agent(uuid))
        self._move("push", container, there, two.datanode_id)
        self._drop(container, there)
        awaited("dropped", lambda: self._are_gone(container, there))
        self._move("pull", container, two.datanode_id, there)
        with Peer(two.address) as peer:
            peer.delete_shard(ContainerId(container))
        awaited("gone", lambda: two.datanode_id not in self._scm.replicas(container))

    def _move(self, how: str, container: int, source: str, target: str) -> None:
        root = self._scm.replicas(container)[source][1]
        index = self._scm.shards(container)[source][1]
        self._ozone.tell(f"{how} {container} {index} {source} {target}")
        awaited(f"{how} to {self._name(target)}", lambda: target in self._scm.replicas(container))
        awaited(
            f"the root of {self._name(source)} at {self._name(target)}",
            lambda: self._scm.replicas(container)[target] == ("CLOSED", root),
        )
        is_meant = self._scm.shards(container)[target][1] == index
        used = self._used(container, target, index)
        names = self._name(source), self._name(target)
        self.moves.append(Move(how, *names, index, used))
        what = f"shard {index}, {used:,} bytes" if index else f"{used:,} bytes"
        self.tell(f"{how}, {names[0]} to {names[1]}", f"{what}, root {root:08x}", is_meant)

    def _used(self, container: int, uuid: str, index: int = 0) -> int:
        with Datanode(self._address(uuid), uuid, replica_index=index) as datanode:
            return datanode.container(ContainerId(container)).used_bytes

    # healing copies

    def heal_copy_at_agent(self) -> None:
        """Damage an agent's copy, and wait for its repair."""
        self._heal_copy(self._agents[0].datanode_id, "a copy: 4 KiB", self._largest())

    def heal_copy_at_ozone(self) -> None:
        """Remove all copies except one from Ozone's datanodes, and damage this copy: flip a bit in
        one block, and remove the file of another. Wait for the repair."""
        container = self._copied[0][0]
        mine = {agent.datanode_id for agent in self._agents}
        last, *others = set(self._scm.replicas(container)) - mine
        self._drop(container, *others)
        awaited("dropped", lambda: self._are_gone(container, *others))
        other = next(block for block in self._copied if block != self._largest())
        self._heal_copy(last, "a copy: a bit, a file", self._largest(), gone=other)

    def _largest(self) -> Block:
        holder = self._agents[0].datanode_id
        return max(self._copied, key=lambda block: self._file(holder, block).stat().st_size)

    def _heal_copy(self, uuid: str, what: str, block: Block, gone: Block | None = None) -> None:
        container = block[0]
        blocks = [block, *([gone] if gone else [])]
        before = {self._file(uuid, one): self._file(uuid, one).read_bytes() for one in blocks}
        if gone is None:
            damaged_bytes = spoil(self._file(uuid, block))
        else:
            flip(self._file(uuid, block), len(before[self._file(uuid, block)]) // 2)
            damaged_bytes = 1 + len(before[self._file(uuid, gone)])
            self._file(uuid, gone).unlink()
        fetched = self._fetched()
        self._scan(uuid, container)
        awaited("UNHEALTHY", lambda: self._is_known_bad(uuid, container))

        def is_whole() -> bool:
            roots = {root for _, root in self._scm.replicas(container).values()}
            return len(roots) == 1 and _as(before)

        rounds = self._rounds(is_whole, lambda: self._reconcile(container))
        moved = self._fetched() - fetched
        by = f"{self._name(uuid)}, from {'all others' if self._is_agent(uuid) else 'agents'}"
        self._heal(Healed(what, self._name(uuid), by, damaged_bytes, moved, rounds, is_whole()))

    def _fetched(self) -> int:
        events = (one for agent in self._agents for one in agent.events("replica_reconciled"))
        return sum(int(one["fetched_bytes"]) for one in events)

    # healing shards

    def heal_shard_at_agent(self) -> None:
        """Damage the shard on an agent, and wait for its repair."""
        self._heal_shard(self._agents[0].datanode_id)

    def heal_shard_at_ozone(self) -> None:
        """Damage the shard on an Ozone datanode, and wait for its repair. The reconstructed shard
        may be on another datanode."""
        shards = self._scm.shards(self._coded[0])
        there = next(uuid for uuid in shards if not self._is_agent(uuid))
        self._heal_shard(there)

    def _heal_shard(self, uuid: str) -> None:
        container = self._coded[0]
        index = self._scm.shards(container)[uuid][1]
        data, row = self._file(uuid, self._coded).read_bytes(), self._row(uuid, index)
        spoil(self._file(uuid, self._coded))
        self._scan(uuid, container)
        awaited("UNHEALTHY", lambda: self._is_known_bad(uuid, container))
        rebuilt = self._rebuilt()
        rounds = self._rounds(
            lambda: self._whole_shards() == INDEXES, lambda: self._ozone.tell("manage")
        )
        made = [at for at, one in self._scm.shards(container).items() if one == ("CLOSED", index)]
        is_same = [self._file(at, self._coded).read_bytes() == data for at in made]
        is_same += [self._row(at, index) == row for at in made]
        ordered = self._rebuilt() - rebuilt
        by = ", ".join(map(self._name, made)) or "nobody"
        if not made:
            self.tell(f"index {index}", self._scm.shards(container), False)
        self._heal(
            Healed(
                f"a shard: 4 KiB of index {index}",
                self._name(uuid),
                f"{by}, from its stripe" if ordered else f"{by}, by Ozone's own",
                SPOILED_BYTES,
                sum(self._used(container, at, index) for at in made),
                rounds,
                len(made) == 1 and all(is_same),
            )
        )

    def _row(self, uuid: str, index: int) -> BlockData:
        """Return the row of a shard's block, with all metadata of its client."""
        container, block_id = self._coded
        with Datanode(self._address(uuid), uuid, replica_index=index) as datanode:
            block = datanode.block(ContainerId(container), BlockId(block_id))
        return replace(block, metadata=tuple(sorted(block.metadata)))

    def _whole_shards(self) -> frozenset[int]:
        shards = self._scm.shards(self._coded[0]).values()
        return frozenset(index for state, index in shards if state == "CLOSED")

    def _rebuilt(self) -> int:
        """Return how many shards the agents have rebuilt."""
        events = (one for agent in self._agents for one in agent.events("task_finished"))
        return sum(one["task"] == "reconstruct" for one in events)

    # around both

    def _rounds(self, is_over: Callable[[], bool], order: Callable[[], object]) -> int:
        """Repeat an order until `is_over` returns True, at most ROUNDS_MAX times; return the number
        of orders."""
        for number in range(1, ROUNDS_MAX + 1):
            order()
            ends_at_s = time.monotonic() + ROUND_S
            while time.monotonic() < ends_at_s:
                if is_over():
                    return number
                time.sleep(0.3)
        return ROUNDS_MAX

    def _heal(self, row: Healed) -> None:
        self.healed.append(row)
        self.tell(f"{row.what} at {row.where}", f"healed by {row.by}", row.is_whole)


def spoil(path: Path) -> int:
    """Change bytes in the middle of a file; return their number."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        data = file.read(SPOILED_BYTES)
        file.seek(-len(data), os.SEEK_CUR)
        file.write(bytes(octet ^ 1 for octet in data))
    return len(data)


def _as(before: Mapping[Path, bytes]) -> bool:
    return all(path.exists() and path.read_bytes() == data for path, data in before.items())


def _cells(row: Healed) -> tuple[str, ...]:
    moved = f"{row.moved_bytes:,}" if row.moved_bytes else "not told"
    return (row.what, row.where, row.by, f"{row.damaged_bytes:,}", moved, str(row.rounds),
            "yes" if row.is_whole else "NO")  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, run, judge."""
    chosen = parser_of("tools.interop", __doc__).parse_args(arguments)
    return judged(Story, as_json=chosen.json)
