"""Damages a hundred containers of a real cluster at once, on random sides, and counts repairs.

    stored     small closed containers, each with three replicas, of which agents have one or two
    damaged    in each one replica, an agent's or an Ozone datanode's; in some another on the other
               side, never the last good one: a bit flipped, 4 KiB of zeros, a file cut, a file gone
    healed     when everybody has read what he has, and the SCM orders containers to be reconciled

A round is one order to reconcile a container; two must suffice. The moved bytes are those that
agents report as fetched, and the chunks that Ozone's log reports as taken from a peer. They are
shown beside the damaged bytes and the bytes of the damaged chunks.

The seed determines sizes, sides, and damage; Ozone determines which datanodes have a container.
"""

import os
import random
import re
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from merkle.replica import BlockId, ContainerId
from ozone.clients.datanode import Datanode
from tools.interop.agents import awaited
from tools.interop.cluster import Block, Ozone
from tools.interop.mixed_cluster import COPIES, Mixed, judged, parser_of, spaced
from tools.interop.scrub import flip

CONTAINERS: Final = 100
SEED: Final = 20
KEYS_AT_ONCE: Final = 8  # Ozone spreads them over its open containers
KEY_BYTES: Final = (4_096, 2**20)
MOVED_AT_ONCE: Final = 20
ORDERS_MAX: Final = 10
REORDERED_S: Final = 6.0
TWICE: Final = 0.25  # of the containers are damaged on both sides
ZEROED_BYTES: Final = 4_096
ROUNDS_ALLOWED: Final = 2
ROUNDS_MAX: Final = 4
STALLED_S: Final = 30.0  # without further repairs by the earlier orders
TAKEN: Final = re.compile(
    r"Successfully ingested chunk at offset (\d+) into block (\d+) of container (\d+) from"
)
SIDES: Final = {True: "agents", False: "Ozone's datanodes"}
HEADS: Final = ("where", "damage", "replicas", "1 round", "2", "more", "not", "bytes", "in chunks",
                "moved")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Damage:
    """The damage to a replica, and the outcome of its repair.

    `is_agents` is True if the replica is on an agent. `rounds` is the number of reconcile rounds
    until the damage was repaired; 0 = not repaired. `moved_bytes` is the number of bytes that the
    datanode fetched for the repair.
    """

    container_id: int
    block_id: int
    where: str
    is_agents: bool
    how: str
    damaged_bytes: int
    chunk_bytes: int
    rounds: int = 0
    moved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Spoiled:
    """A damaged file, and its earlier bytes."""

    damage: Damage
    uuid: str
    path: Path
    before: bytes

    @property
    def is_as_before(self) -> bool:
        """Return True if the file has its earlier bytes again."""
        return self.path.exists() and self.path.read_bytes() == self.before


def zero(path: Path, offset: int) -> None:
    """Overwrite up to 4 KiB with zeros."""
    length_bytes = min(ZEROED_BYTES, path.stat().st_size - offset)
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(bytes(length_bytes))


def remove(path: Path, _: int) -> None:
    """Remove a file; `offset` is ignored."""
    path.unlink()


KINDS: Final[Mapping[str, Callable[[Path, int], None]]] = {
    "a bit": flip,
    "zeros": zero,
    "cut": os.truncate,
    "gone": remove,
}


class Trial(Mixed):
    """A trial that damages all containers of a cluster once, and counts the repairs."""

    def __init__(
        self, ozone: Ozone, place: Path, ends: ExitStack, is_quiet: bool, *, chosen: Namespace
    ) -> None:
        super().__init__(ozone, place, ends, is_quiet=is_quiet)
        self._seed = int(chosen.seed)
        self._rng = random.Random(self._seed)  # noqa: S311 - what is damaged is no secret
        self._wanted = int(chosen.containers)
        self._blocks: dict[int, list[Block]] = {}
        self._chunks: dict[Block, dict[int, int]] = {}  # length by offset
        self._spoiled: list[Spoiled] = []
        self.damages: list[Damage] = []

    def steps(self) -> Iterator[Callable[[], None]]:
        """Return the steps: store, spread, damage, scan, repair, count."""
        yield from (self.fill, self.spread, self.spoil, self.scan, self.heal, self.count,
                    self.look_back)  # fmt: skip

    def told(self) -> Mapping[str, Any]:
        """Return each damage and the totals."""
        return {
            "seed": self._seed,
            "containers": len(self._blocks),
            "totals": {name: self._totals(is_agents) for is_agents, name in SIDES.items()},
            "damages": [asdict(one) for one in self.damages],
        }

    # storing

    def fill(self) -> None:
        """Write keys and close their containers, until there are enough containers."""
        self.tell("seed", self._seed, True)
        self._join()
        self._join()
        while len(self._blocks) < self._wanted:
            for container in dict.fromkeys(block[0] for block in self._written()):
                self._close(container, COPIES)
        used = sum(length_bytes for length_bytes, _ in self._keys.values())
        what = f"{len(self._blocks)} closed, {len(self._keys)} keys, {used:,} bytes"
        self.tell("containers", what, len(self._blocks) >= self._wanted)

    def _written(self) -> list[Block]:
        blocks: list[Block] = []
        for _ in range(KEYS_AT_ONCE):
            number, length_bytes = len(self._keys), self._rng.randint(*KEY_BYTES)
            key = f"key{number}"
            blocks += self._ozone.write(key, length_bytes, number)
            self._keys[key] = (length_bytes, number)
        for block in blocks:
            self._blocks.setdefault(block[0], []).append(block)
        return blocks

    def spread(self) -> None:
        """Move one or two of the three replicas of each container to agents, by orders of the
        SCM."""
        containers = sorted(self._blocks)
        for at in range(0, len(containers), MOVED_AT_ONCE):
            self._move(containers[at : at + MOVED_AT_ONCE])
        held = Counter(
            SIDES[self._is_agent(uuid)] for one in containers for uuid in self._scm.replicas(one)
        )
        self.tell("replicas", ", ".join(f"{count} at {side}" for side, count in held.items()),
                  held.total() == COPIES * len(containers))  # fmt: skip

    def _move(self, containers: Sequence[int]) -> None:
        mine = [agent.datanode_id for agent in self._agents]
        old: dict[int, list[str]] = {}
        pushes: list[tuple[int, str, str]] = []
        for container in containers:
            theirs = sorted(self._scm.replicas(container), key=self._name)
            targets = self._rng.sample(mine, self._rng.randint(1, len(mine)))
            old[container] = self._rng.sample(theirs, len(targets))
            pushes += ((container, *ends) for ends in zip(old[container], targets, strict=True))
        self._push(pushes)
        for container, uuids in old.items():
            self._drop(container, *uuids)
        awaited("dropped", lambda: all(self._are_gone(one, *old[one]) for one in old))
        awaited("equal replicas", lambda: all(self._is_equal(one) for one in old))

    def _push(self, pushes: Sequence[tuple[int, str, str]]) -> None:
        """Order copies repeatedly until they exist, as the SCM's replication manager does. This is
        needed because an agent limits concurrent imports, and rejects others."""
        left = list(pushes)
        for _ in range(ORDERS_MAX):
            for container, source, target in left:
                self._ozone.tell(f"push {container} 0 {source} {target}")
            ends_at_s = time.monotonic() + REORDERED_S
            while left and time.monotonic() < ends_at_s:
                time.sleep(0.3)
                left = [one for one in left if one[2] not in self._scm.replicas(one[0])]
            if not left:
                return
        raise RuntimeError(f"not copied after {ORDERS_MAX} orders: {left}")

    def _is_equal(self, container: int) -> bool:
        """Return True if a container has the required number of replicas, all with the same
        root."""
        roots = [root for _, root in self._scm.replicas(container).values()]
        return len(roots) == COPIES and len(set(roots)) == 1

    # damage

    def spoil(self) -> None:
        """Damage one replica of each container. In some containers, damage two: one on an agent and
        one on a datanode of Ozone."""
        for container in sorted(self._blocks):
            replicas = sorted(self._scm.replicas(container), key=self._name)
            sides = self._rng.sample(tuple(SIDES), 1 + (self._rng.random() < TWICE))
            for side in sides:
                there = [uuid for uuid in replicas if self._is_agent(uuid) is side]
                block = self._rng.choice(self._blocks[container])
                self._spoil(self._rng.choice(there), block, self._rng.choice(tuple(KINDS)))
        bad = Counter(one.damage.container_id for one in self._spoiled)
        twice = sum(count == 2 for count in bad.values())
        self.tell(
            "damaged",
            f"{len(self._spoiled)} replicas of {len(bad)} containers, {twice} on both sides",
            len(bad) == len(self._blocks) and max(bad.values()) < COPIES,
        )

    def _spoil(self, uuid: str, block: Block, how: str) -> None:
        if block not in self._chunks:
            with Datanode(self._address(uuid), uuid) as datanode:
                row = datanode.block(ContainerId(block[0]), BlockId(block[1]))
            self._chunks[block] = {chunk.offset: chunk.length_bytes for chunk in row.chunks}
        path = self._file(uuid, block)
        before = path.read_bytes()
        KINDS[how](path, self._rng.randrange(len(before)))
        after = path.read_bytes() if path.exists() else b""
        bad = [at for at, octet in enumerate(before) if after[at : at + 1] != bytes([octet])]
        assert bad, f"{how} changed nothing of {path}"
        chunks = self._chunks[block].items()
        in_chunks = sum(size for at, size in chunks if after[at : at + size]
                        != before[at : at + size])  # fmt: skip
        damage = Damage(*block, self._name(uuid), self._is_agent(uuid), how, len(bad), in_chunks)
        self._spoiled.append(Spoiled(damage, uuid, path, before))

    def scan(self) -> None:
        """Scan all damaged replicas, and wait until the SCM knows that they are UNHEALTHY."""
        for one in self._spoiled:
            self._scan(one.uuid, one.damage.container_id)
        unknown = list(self._spoiled)

        def are_known() -> bool:
            unknown[:] = [one for one in unknown
                          if not self._is_known_bad(one.uuid, one.damage.container_id)]  # fmt: skip
            return not unknown

        awaited("all of it UNHEALTHY", are_known)
        self.tell("found by scans, told to the SCM", len(self._spoiled), True)

    # healing

    def heal(self) -> None:
        """Request reconciles from the SCM, until all containers are repaired or ROUNDS_MAX rounds
        are over."""
        healed: dict[int, int] = {}
        left = sorted(self._blocks)
        for number in range(1, ROUNDS_MAX + 1):
            for container in left:
                self._reconcile(container)
            for container in self._well(left):
                healed[container] = number
            left = [one for one in left if one not in healed]
            if not left:
                break
        moved = self._moved_to_agents() + self._moved_to_ozone()
        for one in self._spoiled:
            rounds = healed.get(one.damage.container_id, 0)
            moved_bytes = moved[one.damage.container_id, one.damage.is_agents]
            self.damages.append(replace(one.damage, rounds=rounds, moved_bytes=moved_bytes))
        for container in left[:5]:
            self.tell(f"container {container} is not healed", self._scm.replicas(container), False)

    def _well(self, containers: Sequence[int]) -> list[int]:
        """Wait until all these containers are repaired, or no further one was repaired for
        STALLED_S; return the repaired ones."""
        well: list[int] = []
        ends_at_s = time.monotonic() + STALLED_S
        while len(well) < len(containers) and time.monotonic() < ends_at_s:
            fresh = [one for one in containers if one not in well and self._is_well(one)]
            if fresh:
                ends_at_s = time.monotonic() + STALLED_S
            well += fresh
            time.sleep(0.3)
        return well

    def _is_well(self, container: int) -> bool:
        damaged = (one for one in self._spoiled if one.damage.container_id == container)
        return self._is_equal(container) and all(one.is_as_before for one in damaged)

    def _moved_to_agents(self) -> Counter[tuple[int, bool]]:
        """Return the bytes that agents report as fetched, by container."""
        moved: Counter[tuple[int, bool]] = Counter()
        for agent in self._agents:
            for one in agent.events("replica_reconciled"):
                moved[int(one["container_id"]), True] += int(one["fetched_bytes"])
        return moved

    def _moved_to_ozone(self) -> Counter[tuple[int, bool]]:
        """Return the chunks that Ozone's log reports as taken from a peer, by container. Only the
        datanode with the damaged replica takes chunks."""
        moved: Counter[tuple[int, bool]] = Counter()
        for offset, block_id, container in TAKEN.findall((self._place / "log").read_text()):
            chunks = self._chunks[int(container), int(block_id)]
            moved[int(container), False] += chunks[int(offset)]
        return moved

    # results

    def count(self) -> None:
        """Record the repaired damages, the rounds that were needed, and the moved bytes."""
        moved = {}
        for is_agents, name in SIDES.items():
            found = self._totals(is_agents)
            within = found["one_round"] + found["two_rounds"]
            self.tell(
                f"healed at {name} within {ROUNDS_ALLOWED} rounds",
                f"{within} of {found['replicas']}",
                within == found["replicas"] > 0,
            )
            moved[is_agents] = found["moved_bytes"] / found["chunk_bytes"]
            self.tell(
                f"moved to {name}",
                f"{found['moved_bytes']:,} bytes, {moved[is_agents]:.3f} of the damaged chunks",
                found["moved_bytes"] > 0,
            )
        share = moved[True] / moved[False] if moved[False] else float("inf")
        self.tell("moved by agents, of what Ozone moves", f"{share:.3f}", share <= 1.0)
        states = Counter(
            f"{state} at {SIDES[self._is_agent(uuid)]}"
            for container in self._blocks
            for uuid, (state, _) in self._scm.replicas(container).items()
        )
        bad = sum(one.rounds > 0 and not one.is_agents for one in self.damages)
        self.tell(
            "the SCM has",
            ", ".join(f"{count} {state}" for state, count in sorted(states.items())),
            # Ozone does not replace its own, whole or not
            states["UNHEALTHY at agents"] == 0 and states["UNHEALTHY at Ozone's datanodes"] <= bad,
        )

    def _totals(self, is_agents: bool, how: str = "") -> dict[str, int]:
        ones = [one for one in self.damages if one.is_agents is is_agents and how in {"", one.how}]
        rounds = Counter(one.rounds for one in ones)
        return {
            "replicas": len(ones),
            "one_round": rounds[1],
            "two_rounds": rounds[2],
            "more": sum(rounds[number] for number in range(3, ROUNDS_MAX + 1)),
            "not_healed": rounds[0],
            "damaged_bytes": sum(one.damaged_bytes for one in ones),
            "chunk_bytes": sum(one.chunk_bytes for one in ones),
            "moved_bytes": sum(one.moved_bytes for one in ones),
        }

    def table(self) -> str:
        """Return a table with the numbers of repaired damages, by side and kind of damage."""
        rows = [
            (name, how or "all", *(f"{number:,}" for number in self._totals(side, how).values()))
            for side, name in SIDES.items()
            for how in (*KINDS, "")
        ]
        return spaced(HEADS, rows, frozenset(range(2, len(HEADS))))


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, run, judge."""
    parser = parser_of("tools.interop.damages", __doc__)
    parser.add_argument("--seed", type=int, default=SEED, help="what is damaged where")
    parser.add_argument("--containers", type=int, default=CONTAINERS, help="how many")
    chosen = parser.parse_args(arguments)
    return judged(partial(Trial, chosen=chosen), as_json=chosen.json)


if __name__ == "__main__":
    sys.exit(main())
