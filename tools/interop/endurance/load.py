"""Mixed load on an Ozone cluster by Ozone's own client, and the expected state of each key.

The result of an acknowledged operation must persist, whatever happens to datanodes and the SCM. A
failed operation may have taken effect or not, but must not have any other result.
"""

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from tools.interop.cluster import Block
from tools.interop.site import Client

BYTES_MAX: Final = 400 * 1024**2  # limit on stored bytes, without copies and parity
SIZES: Final = ((0.55, 1, 60_000), (0.3, 60_000, 900_000), (0.15, 900_000, 7_000_000))
WRITTEN, DELETED, READ = 0.5, 0.16, 0.31  # shares of all operations; the others close containers
CODED: Final = 0.45  # of the keys
FAILED_S: Final = 2.0  # after a failed operation
PAUSE_S: Final = (0.05, 0.6)  # so that other processes get processor time as well


class OzoneKeyState(Enum):
    """The expected state of a key."""

    STORED = auto()
    GONE = auto()
    EITHER = auto()


@dataclass(slots=True)
class Key:
    """A key with its content, blocks and expected state."""

    name: str
    how: str
    size_bytes: int
    seed: int
    fate: OzoneKeyState = OzoneKeyState.EITHER
    is_busy: bool = True
    blocks: list[Block] = field(default_factory=list)
    gone_s: float = 0.0  # time of the acknowledgement of its delete, on the monotonic clock

    @property
    def words(self) -> str:
        """The key as arguments of the client."""
        return f"{self.name} {self.size_bytes} {self.seed}"


@dataclass
class Load:
    """All keys, their workers, and the errors found."""

    client: Client
    seed: int
    stop: threading.Event
    keys: list[Key] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    written_bytes: int = 0
    _stored_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, number: int) -> None:
        """Run operations until stopped. The seed and `number` determine the worker's random
        choices."""
        chance = random.Random(f"{self.seed}/{number}")  # noqa: S311 - no secret
        while not self.stop.wait(chance.uniform(*PAUSE_S)):
            draw = chance.random()
            if draw < WRITTEN and self._stored_bytes < BYTES_MAX:
                self._write(chance)
            elif draw < WRITTEN + DELETED:
                self._delete(chance)
            elif draw < WRITTEN + DELETED + READ:
                self._read(chance)
            else:
                self._close(chance)

    def _count(self, what: str, error: RuntimeError | None = None) -> None:
        with self._lock:
            self.counts[what if error is None else f"{what}, not possible"] += 1
            if error is not None:
                self.failures[kind_of(error)] += 1
        if error is not None:
            self.stop.wait(FAILED_S)

    def _write(self, chance: random.Random) -> None:
        how = "coded" if chance.random() < CODED else "write"
        draw, size_bytes = chance.random(), 1
        for share, low, high in SIZES:
            size_bytes = chance.randint(low, high)
            draw -= share
            if draw < 0:
                break
        with self._lock:
            number = len(self.keys)
            key = Key(f"{how}{number:06d}", how, size_bytes, number)
            self.keys.append(key)
        what = "coded keys written" if how == "coded" else "keys written"
        try:
            key.blocks = self.client.write(how, key.name, size_bytes, number)
        except RuntimeError as error:
            self._count(what, error)
        else:
            with self._lock:
                key.fate = OzoneKeyState.STORED
                self.written_bytes += size_bytes
                self._stored_bytes += size_bytes
            self._count(what)
        key.is_busy = False

    def _taken(self, chance: random.Random) -> Key | None:
        """Return a stored key that no other worker uses."""
        with self._lock:
            free = [
                key for key in self.keys if key.fate is OzoneKeyState.STORED and not key.is_busy
            ]
            if not free:
                return None
            key = chance.choice(free)
            key.is_busy = True
            return key

    def _delete(self, chance: random.Random) -> None:
        key = self._taken(chance)
        if key is None:
            return
        key.fate = OzoneKeyState.EITHER
        try:
            self.client.tell(f"delete {key.name}")
        except RuntimeError as error:
            self._count("keys deleted", error)
        else:
            key.fate, key.gone_s = OzoneKeyState.GONE, time.monotonic()
            self._count("keys deleted")
        with self._lock:
            self._stored_bytes -= key.size_bytes
        key.is_busy = False

    def _read(self, chance: random.Random) -> None:
        key = self._taken(chance)
        if key is None:
            return
        try:
            found = self.client.tell(f"read {key.words}")
        except RuntimeError as error:
            self._count("keys read", error)
        else:
            self._count("keys read")
            if found != "equal":
                with self._lock:
                    self.wrong.append(f"{key.name} was {found} under load")
        key.is_busy = False

    def _close(self, chance: random.Random) -> None:
        try:
            states = self.client.containers()
            opened = [one for one, (state, _, keys) in states.items() if state == "OPEN" and keys]
            if opened:
                self.client.tell(f"close {chance.choice(opened)}")
                self._count("containers closed")
        except RuntimeError as error:
            self._count("containers closed", error)


def kind_of(error: RuntimeError) -> str:
    """Return the class of a client error."""
    words = str(error).partition(": ")[2].split()
    name = words[0].rstrip(":") if words else "?"
    return name.rpartition(".")[2]
