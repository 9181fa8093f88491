"""Faults of disks and memory, operation by operation, as the events of a schedule specify."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tools.simulation.oracle import Held, Oracle
from tools.simulation.simulated_os.fibers import ProcessDied, ProcessLifetime
from tools.simulation.simulated_os.kernel import EIO, EMFILE, ENOSPC, Faults, failure

BLOCK: Final = re.compile(r"/([^/]+)/hdds/.*/(\d+)/chunks/(\d+)\.block$")
READS: Final = frozenset({"read", "open"})
OPENING: Final = frozenset({"open", "create"})
FAILING: Final = frozenset({"write", "fsync", "create", "read", "rename"})


@dataclass(slots=True)
class CrashTrigger:
    """Ends a process after a number of disk operations, by a kill or a power cut."""

    left: int
    is_cut: bool
    seed: int


@dataclass(slots=True)
class SeededFaults(Faults):
    """The faults of one schedule."""

    dice: Random
    oracle: Oracle
    fuses: dict[str, list[CrashTrigger]] = field(default_factory=dict)
    burnt: dict[str, CrashTrigger] = field(default_factory=dict)
    lies: dict[str, int] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    flips: dict[str, float] = field(default_factory=dict)
    shortages: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    note: Callable[[str], None] = lambda _: None

    def before(self, what: str, path: str, life: ProcessLifetime) -> None:
        """Raise ProcessDied or OSError if a fault is due before this operation."""
        for fuse in self.fuses.get(life.name, ()):
            fuse.left -= 1
        ended = [fuse for fuse in self.fuses.get(life.name, ()) if fuse.left <= 0]
        if ended:
            self.fuses[life.name].remove(ended[0])
            self.burnt[life.name] = ended[0]
            self._count("power cuts" if ended[0].is_cut else "kills")
            self.note(f"-- {'power cut' if ended[0].is_cut else 'kill'} of {life.name}")
            life.is_dead = True
            raise ProcessDied(life)
        odds = self.errors.get(life.name, 0.0)
        if odds and what in FAILING and self.dice.random() < odds and self._may_fail(what, path):
            self._count(f"failed {what}")
            code = EIO if what in READS or self.dice.random() < 0.7 else ENOSPC
            self.note(f"-- error {code} {what} {path}")
            raise failure(code, path)

        odds = self.shortages.get(life.name, 0.0)
        if odds and what in OPENING and self.dice.random() < odds:
            self._count("opens without a descriptor")
            self.note(f"-- no descriptor to {what} {path}")
            raise failure(EMFILE, path)

    def _may_fail(self, what: str, path: str) -> bool:
        place = place_of(path)
        if place is None:
            return what not in READS or ".mdb" not in path
        if (place.container, place.block) not in self.oracle.blocks:
            return True
        if not self.oracle.may_harm(place):
            return False
        self.oracle.harm(place)
        return True

    def read(self, path: str, data: bytes) -> bytes:
        """Return the data of a read of a block, with some probability with a flipped bit."""
        place = place_of(path)
        odds = self.flips.get(path_node(path), 0.0)
        if place is None or not data or not odds or self.dice.random() >= odds:
            return data
        self._count("flips in memory")
        self.note(f"-- flip in memory {path}")
        return flipped(self.dice, data)

    def write(self, path: str, offset: int, data: bytes) -> bytes | None:
        """Return the bytes that reach the disk. If a LIE is due, lose, cut or change the write."""
        del offset
        place = place_of(path)
        if place is None or not self.lies.get(place.node):
            return data
        known = (place.container, place.block) in self.oracle.blocks
        if not known or not self.oracle.may_harm(place):
            return data
        self.lies[place.node] -= 1
        self.oracle.harm(place)
        way = self.dice.choice(("lost", "cut short", "changed"))
        self._count(f"writes {way}")
        self.note(f"-- write {way} {path}")
        if way == "lost":
            return None
        return data[: len(data) // 2] if way == "cut short" else flipped(self.dice, data)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def place_of(path: str) -> Held | None:
    """Return the block and the datanode of a block file's path; None for other paths."""
    match = BLOCK.search(path)
    return None if match is None else Held(match[1], int(match[2]), int(match[3]))


def path_node(path: str) -> str:
    """Return the host of a path's disk."""
    return path.partition("/hdds/")[0].rpartition("/")[2]


def flipped(dice: Random, data: bytes) -> bytes:
    """Return the bytes with one bit changed."""
    changed = bytearray(data)
    changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)
