"""The kind of accident, told from bytes and checksums, mostly without the good bytes."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from merkle.checksum import window_checksums
from merkle.replica import ChecksumType, ChunkInfo
from scanner.finding import Forensic
from scanner.forensics import PAGE_BYTES, SECTOR_BYTES, Explanation, explain
from tests.support.storage.replica_reader import MemoryReader, MemoryReplica, chunk_of, noise, scan

WINDOW_BYTES = 16 * 1024
CHUNK_BYTES = 10 * WINDOW_BYTES
ROUNDS = 60
ACCURACY_MIN = 0.95

Injection = Callable[[bytes, Random], bytes]


def single_bit(data: bytes, random: Random) -> bytes:
    """Flip one bit."""
    changed = bytearray(data)
    changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(changed)


def zeroed(data: bytes, random: Random) -> bytes:
    """Zero one to eight sectors that are not the last ones."""
    count = random.randint(1, 8)
    start = random.randrange(len(data) // SECTOR_BYTES - count) * SECTOR_BYTES
    return data[:start] + bytes(count * SECTOR_BYTES) + data[start + count * SECTOR_BYTES :]


def torn_at(grain_bytes: int) -> Injection:
    """Return an injection of zeros from a sector or page on."""

    def torn(data: bytes, random: Random) -> bytes:
        edges = [
            edge
            for edge in range(grain_bytes, len(data) - SECTOR_BYTES, grain_bytes)
            if grain_bytes == PAGE_BYTES or edge % PAGE_BYTES
        ]
        edge = random.choice(edges)
        return data[:edge] + bytes(len(data) - edge)

    return torn


def truncated(data: bytes, random: Random) -> bytes:
    """Cut the file."""
    return data[: random.randrange(1, len(data))]


BY_BYTES: dict[Forensic, Injection] = {
    Forensic.SINGLE_BIT: single_bit,
    Forensic.ZEROED: zeroed,
    Forensic.TORN_512: torn_at(SECTOR_BYTES),
    Forensic.TORN_4096: torn_at(PAGE_BYTES),
    Forensic.TRUNCATED: truncated,
}


def explained(written: bytes, bad: bytes, **known: object) -> Explanation:
    """Explain damage as a scan would."""
    chunk = chunk_of(written, bytes_per_checksum=WINDOW_BYTES)
    sums = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, bad)
    return explain(chunk, bad, sums, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize("label", list(BY_BYTES))
def test_accident_is_classified_from_the_bytes(label: Forensic) -> None:
    """At least 95 of 100 labelled accidents get their label without the good bytes."""
    random = Random(label)
    found: Counter[Forensic] = Counter()

    for seed in range(ROUNDS):
        good = noise(CHUNK_BYTES - random.choice([0, 1, 5_000]), seed)
        found[explained(good, BY_BYTES[label](good, random)).forensic] += 1

    assert found[label] >= ACCURACY_MIN * ROUNDS, found


def test_a_single_bit_is_named() -> None:
    """Byte and bit, counted in the file."""
    good = noise(CHUNK_BYTES)
    bad = good[:70_000] + bytes([good[70_000] ^ 0x08]) + good[70_001:]

    assert "bit 3 of byte 70000 is flipped, nothing else" == explained(good, bad).words


def test_flipped_bits_in_two_windows_are_classified_as_bits() -> None:
    """A cell that fails at two places is named twice."""
    good = noise(CHUNK_BYTES)
    bad = bytearray(good)
    bad[100] ^= 1
    bad[70_000] ^= 0x80

    result = explained(good, bytes(bad))

    assert Forensic.SINGLE_BIT == result.forensic
    assert "bit 0 of byte 100, bit 7 of byte 70000 are flipped" in result.words


@pytest.mark.parametrize("seed", range(20))
def test_garbage_is_not_given_a_class(seed: int) -> None:
    """Random bytes over a part of the chunk look like nothing, and nothing is claimed."""
    random = Random(seed)
    good = noise(CHUNK_BYTES)
    start = random.randrange(CHUNK_BYTES - 5_000)
    bad = good[:start] + noise(random.randrange(2, 5_000), seed + 100) + good[start + 5_000 :]
    bad = (bad + good)[:CHUNK_BYTES]

    assert Forensic.UNKNOWN == explained(good, bad).forensic


def test_former_bytes_of_a_chunk_are_classified_as_stale() -> None:
    """A lost write leaves the bytes that a repair had replaced."""
    good, old = noise(CHUNK_BYTES, 1), noise(CHUNK_BYTES, 2)

    assert Forensic.STALE == explained(good, old, former=[noise(9, 3), old]).forensic
    assert Forensic.UNKNOWN == explained(good, old, former=[noise(CHUNK_BYTES, 3)]).forensic


@pytest.mark.parametrize(
    ("edge", "label"), [(20_480, Forensic.TORN_4096), (66_048, Forensic.TORN_512)]
)
def test_a_tear_over_old_bytes_shows_by_the_old_or_the_good_bytes(
    edge: int, label: Forensic
) -> None:
    """Without either there is only garbage; with either the edge is exact."""
    good, old = noise(CHUNK_BYTES, 1), noise(CHUNK_BYTES, 2)
    bad = good[:edge] + old[edge:]

    assert Forensic.UNKNOWN == explained(good, bad).forensic
    for result in (explained(good, bad, former=[old]), explained(good, bad, good=good)):
        assert label == result.forensic
        assert f"from byte {edge}" in result.words


@pytest.mark.parametrize("label", [Forensic.TORN_512, Forensic.TORN_4096])
def test_tears_are_told_when_the_good_bytes_are_known(label: Forensic) -> None:
    """At least 95 of 100 tears over other data, whatever the other data is."""
    random = Random(label)
    grain_bytes = SECTOR_BYTES if label is Forensic.TORN_512 else PAGE_BYTES
    found: Counter[Forensic] = Counter()

    for seed in range(ROUNDS):
        good = noise(CHUNK_BYTES, seed)
        mask = torn_at(grain_bytes)(b"\1" * CHUNK_BYTES, random)
        edge = mask.index(0)
        bad = good[:edge] + noise(CHUNK_BYTES - edge, seed + ROUNDS)
        found[explained(good, bad, good=good).forensic] += 1

    assert found[label] >= ACCURACY_MIN * ROUNDS, found


def test_sectors_are_the_file_s_not_the_chunk_s() -> None:
    """A chunk may begin anywhere; a device tears where its sectors are."""
    good = noise(CHUNK_BYTES)
    chunk = chunk_of(good, offset=1_000, bytes_per_checksum=WINDOW_BYTES)
    edge = 8 * SECTOR_BYTES - 1_000
    bad = good[:edge] + bytes(CHUNK_BYTES - edge)
    sums = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, bad)

    result = explain(chunk, bad, sums)

    assert Forensic.TORN_4096 == result.forensic
    assert "zero from byte 4096 to the chunk's end" in result.words


def test_two_zeroed_places_are_no_tear() -> None:
    """A tear is zero to its end. Data between two places separates them."""
    good = noise(CHUNK_BYTES)
    bad = good[:PAGE_BYTES] + bytes(PAGE_BYTES) + good[2 * PAGE_BYTES : -PAGE_BYTES]

    assert Forensic.ZEROED == explained(good, bad + bytes(PAGE_BYTES)).forensic


def test_zeros_that_were_written_are_no_damage_when_the_good_bytes_are_known() -> None:
    """A sector of zeros beside other damage misleads only who does not know what was there."""
    good = bytes(2 * SECTOR_BYTES) + noise(CHUNK_BYTES - 2 * SECTOR_BYTES)
    bad = good[:2_000] + b"damage" + good[2_006:]

    assert Forensic.ZEROED == explained(good, bad).forensic
    assert Forensic.UNKNOWN == explained(good, bad, good=good).forensic


@pytest.mark.parametrize("checksum_type", [ChecksumType.SHA256, ChecksumType.MD5])
def test_other_checksums_tell_everything_but_bits(checksum_type: ChecksumType) -> None:
    """A cryptographic checksum does not name a bit; zeros need no checksum."""
    good = noise(CHUNK_BYTES)
    chunk = chunk_of(good, checksum_type=checksum_type, bytes_per_checksum=WINDOW_BYTES)

    def forensic(bad: bytes) -> Forensic:
        return explain(chunk, bad, window_checksums(checksum_type, WINDOW_BYTES, bad)).forensic

    assert Forensic.UNKNOWN == forensic(single_bit(good, Random(1)))
    assert Forensic.ZEROED == forensic(zeroed(good, Random(1)))


class TestInAScan:
    def misplaced(self, checksum_type: ChecksumType = ChecksumType.CRC32C) -> MemoryReplica:
        """Return a replica in which block 2 has what belongs into block 5, from its page 4 on."""
        replica = MemoryReplica()
        for block_id in range(1, 8):
            data = noise(10 * PAGE_BYTES, block_id), noise(3 * PAGE_BYTES, block_id + 50)
            replica.put(block_id, *data, checksum_type=checksum_type)
        replica.damage(2, 4 * PAGE_BYTES, replica.files[5][: 2 * PAGE_BYTES])
        return replica

    @pytest.mark.parametrize("checksum_type", [ChecksumType.CRC32C, ChecksumType.SHA256])
    def test_bytes_of_another_block_are_misdirected(self, checksum_type: ChecksumType) -> None:
        """The replica's own rows say where the bytes belong."""
        outcome = scan(MemoryReader(self.misplaced(checksum_type)))

        (finding,) = outcome.findings
        assert (Forensic.MISDIRECTED, 2) == (finding.forensic, finding.block_id)
        assert "window 4 is window 0 of the chunk at 0 of block 5; 2 of 2" in finding.evidence

    def test_misdirected_writes_are_told(self) -> None:
        """At least 95 of 100 windows that went to a wrong place are traced to their own."""
        random, found = Random(6), 0
        for _ in range(ROUNDS):
            replica = self.misplaced()
            replica.damage(2, 0, noise(10 * PAGE_BYTES, 2))
            source, page, target = random.choice([1, 3, 4, 6]), *random.choices(range(10), k=2)
            stolen = replica.files[source][page * PAGE_BYTES : (page + 1) * PAGE_BYTES]
            replica.damage(7, target * PAGE_BYTES, stolen)
            (finding,) = scan(MemoryReader(replica)).findings
            found += Forensic.MISDIRECTED is finding.forensic
        assert found >= ACCURACY_MIN * ROUNDS

    def test_foreign_bytes_in_a_scan_stay_unknown(self) -> None:
        """No checksum is invented that no row has."""
        replica = self.misplaced()
        replica.damage(2, 4 * PAGE_BYTES, noise(2 * PAGE_BYTES, 99))

        (finding,) = scan(MemoryReader(replica)).findings

        assert Forensic.UNKNOWN == finding.forensic

    def test_former_bytes_are_asked_for_the_damaged_chunk_only(self) -> None:
        """The bytes that quarantine has for this place explain a lost write."""
        replica = self.misplaced()
        replica.former[2, 0] = [replica.files[2][: 10 * PAGE_BYTES]]

        (finding,) = scan(MemoryReader(replica)).findings

        assert Forensic.STALE == finding.forensic

    def test_a_cut_file_is_truncated(self) -> None:
        """The class of a short chunk and of those that are missing behind it."""
        replica = MemoryReplica()
        replica.put(1, noise(5_000, 1), noise(5_000, 2))
        replica.files[1] = replica.files[1][:3_000]

        outcome = scan(MemoryReader(replica))

        assert [Forensic.TRUNCATED] * 2 == [finding.forensic for finding in outcome.findings]

    def test_a_damaged_row_does_not_hide_the_others(self) -> None:
        """Rows that cannot be parsed are passed over when places are sought."""
        replica = self.misplaced()
        row = replica.rows[4]
        replica.rows[4] = row[:-3]

        outcome = scan(MemoryReader(replica))

        assert [Forensic.UNKNOWN, Forensic.MISDIRECTED] == sorted(
            (finding.forensic for finding in outcome.findings), reverse=True
        )


def test_a_chunk_without_checksums_has_no_class() -> None:
    """A chunk info without checksums explains nothing and breaks nothing."""
    chunk = ChunkInfo(0, 100, ChecksumType.NONE, 0, b"")

    assert Forensic.UNKNOWN == explain(chunk, bytes(100), b"").forensic
