"""Applies mixed load, and checks its results. The bytes of a key are derived from its name.

The result of an acknowledged operation must persist, whatever happens. A failed operation may have
taken effect or not, but must not have any other result.
"""

import hashlib
import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from suture import Client, KeyNotFound, SutureError

BYTES_MAX: Final = 350 * 1024**2  # limit on stored bytes; three times that on disks
SIZES: Final = ((0.6, 1, 20_000), (0.3, 50_000, 900_000), (0.1, 1_000_000, 9_000_000))
PUTS, GETS, LISTS = 0.45, 0.40, 0.02  # shares of all operations; the others delete


class KeyState(Enum):
    """The expected state of a key."""

    STORED = auto()
    GONE = auto()
    EITHER_STORED = auto()  # a put failed: the key may exist
    EITHER_GONE = auto()  # a delete failed: the key may be gone


@dataclass(slots=True)
class Key:
    """A key with its content and expected state."""

    name: str
    size_bytes: int
    fate: KeyState = KeyState.EITHER_STORED
    is_busy: bool = True

    def content(self) -> bytes:
        """Return the content."""
        return random.Random(self.name).randbytes(self.size_bytes)


@dataclass
class Oracle:
    """All keys, and the errors found."""

    seed: int
    keys: dict[str, Key] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    stored_bytes: int = 0
    written_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, chance: random.Random) -> Key:
        """Create a key of random size for a put, and return it."""
        draw, size = chance.random(), 1
        for share, low, high in SIZES:
            size = chance.randint(low, high)
            draw -= share
            if draw < 0:
                break
        with self.lock:
            key = Key(f"soak/{self.seed}/{len(self.keys):07d}", size)
            self.keys[key.name] = key
        return key

    def take(self, chance: random.Random) -> Key | None:
        """Return a stored key that no other worker uses."""
        with self.lock:
            free = [k for k in self.keys.values() if k.fate is KeyState.STORED and not k.is_busy]
            if not free:
                return None
            key = chance.choice(free)
            key.is_busy = True
            return key

    def settle(self, key: Key, fate: KeyState, what: str) -> None:
        """Record the outcome of an operation on a key."""
        with self.lock:
            was, key.fate, key.is_busy = key.fate, fate, False
            self.counts[what] += 1
            if fate is KeyState.STORED and was is not KeyState.STORED:
                self.stored_bytes += key.size_bytes
                self.written_bytes += key.size_bytes
            if was is KeyState.STORED and fate is not KeyState.STORED:
                self.stored_bytes -= key.size_bytes

    def count(self, what: str, number: int = 1) -> None:
        """Count operations."""
        with self.lock:
            self.counts[what] += number

    def failed_count(self) -> int:
        """Return how many operations failed."""
        with self.lock:
            return sum(count for what, count in self.counts.items() if ":" in what)

    def blame(self, why: str) -> None:
        """Record a violation."""
        with self.lock:
            self.wrong.append(why)


class Worker:
    """A client that puts, gets, lists and deletes until stopped."""

    def __init__(self, oracle: Oracle, scm: str, number: int, stop: threading.Event) -> None:
        self._oracle, self._stop = oracle, stop
        self._scm = scm
        self._chance = random.Random(f"{oracle.seed}-{number}")

    def run(self) -> None:
        """Run one operation after another until stopped. An unexpected exception is a bug of the
        client."""
        with Client(self._scm) as client:
            while not self._stop.is_set():
                failed_count = self._oracle.failed_count()
                self._once(client)
                has_failed = self._oracle.failed_count() > failed_count
                self._stop.wait(self._chance.uniform(0, 1.0 if has_failed else 0.2))

    def _once(self, client: Client) -> None:
        draw = self._chance.random()
        if draw < PUTS and self._oracle.stored_bytes < BYTES_MAX:
            self._put(client)
        elif draw < PUTS + GETS:
            self._get(client)
        elif draw < PUTS + GETS + LISTS:
            self._list(client)
        else:
            self._remove(client)

    def _put(self, client: Client) -> None:
        key = self._oracle.begin(self._chance)
        try:
            client.put(key.name, key.content())
        except SutureError as error:
            self._oracle.settle(key, KeyState.EITHER_STORED, f"put: {error.code.value}")
        else:
            self._oracle.settle(key, KeyState.STORED, "put")

    def _get(self, client: Client) -> None:
        key = self._oracle.take(self._chance)
        if key is None:
            return
        said = look(client, key, self._oracle)
        self._oracle.settle(key, KeyState.STORED, f"get{said}")

    def _list(self, client: Client) -> None:
        try:
            count = sum(1 for _ in client.list(f"soak/{self._oracle.seed}/"))
        except SutureError as error:
            self._oracle.count(f"list: {error.code.value}")
        else:
            self._oracle.count("list")
            self._oracle.count("listed keys", count)

    def _remove(self, client: Client) -> None:
        key = self._oracle.take(self._chance)
        if key is None:
            return
        try:
            client.delete(key.name)
        except SutureError as error:
            self._oracle.settle(key, KeyState.EITHER_GONE, f"delete: {error.code.value}")
        else:
            self._oracle.settle(key, KeyState.GONE, "delete")


def look(client: Client, key: Key, oracle: Oracle) -> str:
    """Read a key and compare it with its expected state; return the reason if it could not be
    read."""
    try:
        content = client.get(key.name)
    except KeyNotFound:
        if key.fate is KeyState.STORED:
            oracle.blame(f"{key.name} was acknowledged and is not there")
        return ": gone"
    except SutureError as error:
        return f": {error.code.value}"
    if key.fate is KeyState.GONE:
        oracle.blame(f"{key.name} was deleted and is there")
    if checksum_of(content) != checksum_of(key.content()):
        oracle.blame(f"{key.name} has {len(content)} bytes that were never stored so")
    return ""


def checksum_of(content: bytes) -> str:
    """Return the BLAKE2b checksum of bytes, an algorithm that the product does not use for data."""
    return hashlib.blake2b(content).hexdigest()
