"""A host whose memory, bus or checksum library lies: it must never call good data corrupt (I3).

Every test also asserts that the lies really happened: a fault tier that injects nothing proves
nothing.
"""

from collections.abc import Callable

import pytest

from merkle.checksum import window_checksums
from merkle.replica import ChecksumType
from merkle.second_checksum import witness_checksums
from scanner.chunk_verdict import Windows, Witnesses
from scanner.finding import Verdict
from tests.support.storage.replica_reader import (
    Alter,
    AlteredReader,
    MemoryReader,
    MemoryReplica,
    flipping,
    noise,
    scan,
)

pytestmark = pytest.mark.fault
ROUNDS = 150
CHUNK_BYTES = 6_000


class Counter:
    """Counts how often a wrapped function changed what passed through it."""

    def __init__(self) -> None:
        self.count = 0

    def alter(self, alter: Alter) -> Alter:
        def counted(data: bytes) -> bytes:
            altered = alter(data)
            self.count += altered != data
            return altered

        return counted

    def windows(self, truth: Windows, wrong: Callable[[bytes], bytes]) -> Windows:
        def lying(
            checksum_type: ChecksumType, bytes_per_checksum: int, data: bytes | memoryview
        ) -> bytes:
            sums = truth(checksum_type, bytes_per_checksum, data)
            altered = wrong(sums)
            self.count += altered != sums
            return altered

        return lying


@pytest.fixture
def replica() -> MemoryReplica:
    """Return four blocks of two chunks, all good."""
    result = MemoryReplica()
    for block_id in range(1, 5):
        result.put(block_id, noise(CHUNK_BYTES, block_id), noise(CHUNK_BYTES, 100 + block_id))
    return result


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_bits_flipped_in_the_first_buffer_are_never_corruption(
    replica: MemoryReplica, share: float
) -> None:
    """Memory that flips what the hot path reads costs re-reads, and nothing else."""
    lies, tree = Counter(), replica.metadata_tree()

    for seed in range(ROUNDS):
        outcome = scan(AlteredReader(replica, lies.alter(flipping(seed, share))))

        assert not outcome.is_damaged
        assert tree == outcome.tree

    assert lies.count >= ROUNDS * share


def test_bits_flipped_in_every_buffer_are_never_corruption(replica: MemoryReplica) -> None:
    """Re-reads that are flipped too do not agree with each other, and nothing is marked."""
    lies = Counter()

    for seed in range(ROUNDS):
        first, again = lies.alter(flipping(seed)), lies.alter(flipping(seed + ROUNDS))
        outcome = scan(AlteredReader(replica, first, again))

        assert not outcome.is_damaged

    assert lies.count > ROUNDS


@pytest.mark.parametrize("liar", ["primary", "second", "both"])
def test_checksums_flipped_on_their_way_back_are_never_corruption(
    replica: MemoryReplica, liar: str
) -> None:
    """A library or CPU that returns a wrong sum now and then cannot condemn a chunk."""
    lies = Counter()

    for seed in range(ROUNDS):
        wrong = flipping(seed, share=0.7)
        primary = lies.windows(window_checksums, wrong if liar != "second" else bytes)
        second = lies.windows(witness_checksums, wrong if liar != "primary" else bytes)
        # The second witness is asked only about suspects: give it some.
        reader = AlteredReader(replica, flipping(seed, share=0.5))
        outcome = scan(reader, witnesses=Witnesses(primary, second))

        assert not outcome.is_damaged

    assert lies.count > ROUNDS


def test_a_stuck_bit_in_the_first_buffer_is_never_corruption(replica: MemoryReplica) -> None:
    """A bad cell with the same wrong bit at every read defeats a simple retry."""
    lies = Counter()

    def stuck(data: bytes) -> bytes:
        return data[:1_000] + bytes([data[1_000] ^ 0x04]) + data[1_001:]

    outcome = scan(AlteredReader(replica, lies.alter(stuck)))

    assert not outcome.is_damaged
    assert {Verdict.SUSPECT_HOST} == {item.verdict for item in outcome.findings}
    assert 4 == lies.count


def test_real_damage_is_still_found_by_a_host_that_lies_now_and_then(
    replica: MemoryReplica,
) -> None:
    """Caution must not make blind: with every third read flipped, damage is found in the end."""
    replica.flip(3, 500)

    found = 0
    for seed in range(ROUNDS):
        outcome = scan(AlteredReader(replica, flipping(seed, share=0.3)))
        assert {3} >= {item.block_id for item in outcome.findings if item.is_damage}
        found += outcome.is_damaged

    assert ROUNDS == found
    assert scan(MemoryReader(replica)).is_damaged
