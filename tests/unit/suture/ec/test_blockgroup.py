"""What the shards of a block say of their group."""

from dataclasses import replace

import pytest

from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo
from ozone.disk.encoding import STRIPE, STRIPES
from suture.ec.blockgroup import (
    GROUP_LENGTH_KEY,
    OZONE_NOTES,
    STRIPES_PER_PAIR,
    STRIPES_WITH_CHECKSUM_MAX,
    OrphanGroup,
    RebuildableGroup,
    group_metadata,
    resolve_group,
    stripe_checksum,
    stripe_checksums_of,
    stripe_metadata,
)
from suture.ec.geometry import BlockGroup
from tests.support.storage.ec_groups import SMALL_SCHEMES

SCHEME = SMALL_SCHEMES[0]  # rs-3-2, cells of 512 bytes
BLOCK = BlockId(7)


def chunk(offset: int, length_bytes: int, sums: bytes = b"sums") -> ChunkInfo:
    return ChunkInfo(offset, length_bytes, ChecksumType.CRC32C, 512, sums)


def shard(index: int, group_bytes: int) -> BlockData:
    """The block of one shard, as a writer leaves it."""
    group = BlockGroup(SCHEME, group_bytes)
    lengths = [group.cell_bytes(stripe, index) for stripe in range(group.stripe_count)]
    chunks = tuple(chunk(stripe * 512, length) for stripe, length in enumerate(lengths) if length)
    return BlockData(BLOCK, Bcsid(1), chunks, group_metadata((("key", "a"),), group))


class TestOzonesRecord:
    """What Ozone recorded of stripes lies among the notes of the shards that keep it."""

    NOTES = (("ozone.stripe_checksum.0", "AAAA"), ("ozone.stripe_checksums.0", "BBBB"))

    def test_ozone_record_is_found_on_any_shard_that_has_it(self) -> None:
        """The shard with index 1 may be the lost one."""
        known = {index: shard(index, 3000) for index in (2, 3, 4)}
        known[4] = replace(known[4], metadata=(*known[4].metadata, *self.NOTES))

        agreed = resolve_group(SCHEME, BLOCK, known)

        assert isinstance(agreed, RebuildableGroup)
        assert self.NOTES == agreed.notes

    def test_ozone_record_is_not_copied_to_other_shards(self) -> None:
        """A row that serves as a model passes on the client's metadata, but neither Ozone's
        record nor Suture's own.
        """
        found = group_metadata((("key", "a"), *self.NOTES), BlockGroup(SCHEME, 3000))

        assert (("key", "a"), ("blockGroupLen", "3000")) == found

    def test_ozone_record_keys_have_the_prefix_of_ozone_notes(self) -> None:
        """`ozone.disk` defines the keys, which this package does not import."""
        assert all(key.startswith(OZONE_NOTES) for key in (STRIPE, STRIPES))


class TestAgreement:
    def test_equal_lengths_are_the_group(self) -> None:
        """All sources have one length, which is that of the group, and all can be used."""
        known = {index: shard(index, 3000) for index in SCHEME.indexes}

        agreed = resolve_group(SCHEME, BLOCK, known)

        assert isinstance(agreed, RebuildableGroup)
        assert 3000 == agreed.group.length_bytes
        assert {1, 2, 3, 4, 5} == set(agreed.shards)

    def test_the_longest_length_that_enough_have_is_the_groups(self) -> None:
        """One shard without the last stripe does not reduce the group."""
        stripe = SCHEME.stripe_bytes
        known = {index: shard(index, 2 * stripe) for index in (1, 2, 4)} | {5: shard(5, stripe)}

        agreed = resolve_group(SCHEME, BLOCK, known)

        assert isinstance(agreed, RebuildableGroup)
        assert 2 * stripe == agreed.group.length_bytes
        assert {1, 2, 4} == set(agreed.shards)

    def test_bytes_that_too_few_shards_have_are_not_part_of_the_group(self) -> None:
        """Two shards have a stripe that was never acknowledged to a client. The group ends
        before it.
        """
        stripe = SCHEME.stripe_bytes
        known = {index: shard(index, 2 * stripe) for index in (1, 2)}
        known |= {index: shard(index, stripe) for index in (3, 5)}

        agreed = resolve_group(SCHEME, BLOCK, known)

        assert isinstance(agreed, RebuildableGroup)
        assert stripe == agreed.group.length_bytes
        assert {1, 2, 3, 5} == set(agreed.shards)

    def test_group_length_that_enough_shards_record_is_not_cut(self) -> None:
        """Three shards record two stripes and have lost chunks, so the block is an orphan and
        not one stripe long.
        """
        stripe = SCHEME.stripe_bytes
        known = {index: shard(index, stripe) for index in (4, 5)}
        for index in (1, 2, 3):
            claimed = shard(index, 2 * stripe)
            known[index] = replace(claimed, chunks=claimed.chunks[:1])

        found = resolve_group(SCHEME, BLOCK, known)

        assert isinstance(found, OrphanGroup)
        assert f"of a group of {2 * stripe} bytes" in found.reason

    def test_a_length_that_no_group_has_is_left_out(self) -> None:
        """One shard with an impossible length is left out, and the block is readable."""
        known = {index: shard(index, 3000) for index in (1, 2, 3)}
        known[4] = replace(shard(4, 3000), metadata=((GROUP_LENGTH_KEY, "9" * 19),))

        agreed = resolve_group(SCHEME, BLOCK, known)

        assert isinstance(agreed, RebuildableGroup)
        assert 3000 == agreed.group.length_bytes
        assert {1, 2, 3} == set(agreed.shards)

    def test_a_block_that_too_few_know_is_an_orphan(self) -> None:
        """
        With fewer sources than data shards there is nothing to compute from.
        """
        known = {1: shard(1, 100), 2: shard(2, 100), 3: None, 4: None}

        assert OrphanGroup(BLOCK, "2 of 3 sources know its length") == resolve_group(
            SCHEME, BLOCK, known
        )

    @pytest.mark.parametrize("other_bytes", [900, 1400])
    def test_shard_with_another_length_within_the_stripe_is_left_out(
        self, other_bytes: int
    ) -> None:
        """Its parity cell may be as long as that of the others, and belongs to another stripe."""
        known = {index: shard(index, 1000) for index in (1, 2, 3)} | {4: shard(4, other_bytes)}

        found = resolve_group(SCHEME, BLOCK, known)

        assert isinstance(found, RebuildableGroup)
        assert 1000 == found.group.length_bytes
        assert {1, 2, 3} == set(found.shards)

    def test_block_is_an_orphan_if_too_few_shards_agree_on_a_length(self) -> None:
        """Parity of a longer stripe says nothing about a shorter one."""
        known = {index: shard(index, 1000) for index in (1, 2)}
        known |= {index: shard(index, 900) for index in (3, 4)}

        found = resolve_group(SCHEME, BLOCK, known)

        assert isinstance(found, OrphanGroup)
        assert "different lengths" in found.reason

    def test_a_shard_whose_chunks_are_not_cells_is_left_out(self) -> None:
        """
        A shard that lacks a chunk is no source; the others are.
        """
        known = {index: shard(index, 3000) for index in (1, 2, 3, 4)}
        known[2] = replace(known[2], chunks=known[2].chunks[:1])

        agreed = resolve_group(SCHEME, BLOCK, known)

        assert isinstance(agreed, RebuildableGroup)
        assert {1, 3, 4} == set(agreed.shards)

    @pytest.mark.parametrize("text", ["", "-1", "1e3", "9" * 20, "\u0661"])
    def test_a_length_that_is_none_counts_as_unknown(self, text: str) -> None:
        """
        Metadata is the writer's text: what is no length is no length.
        """
        bad = replace(shard(1, 100), metadata=(("blockGroupLen", text),))

        found = resolve_group(SCHEME, BLOCK, {1: bad, 2: bad, 3: bad})

        assert isinstance(found, OrphanGroup)


class TestStripeChecksums:
    def test_come_back_from_metadata(self) -> None:
        """The groups are read back unchanged, over several pairs, up to the largest group."""
        count = STRIPES_PER_PAIR + 1
        group = BlockGroup(SCHEME, count * SCHEME.stripe_bytes)
        checksums = tuple(range(2**32 - count, 2**32))
        block = BlockData(BLOCK, Bcsid(1), (), stripe_metadata(checksums))

        assert checksums == stripe_checksums_of([block], group)
        assert all(len(value) <= 4096 for _, value in block.metadata)

    def test_are_left_out_of_a_group_of_too_many_stripes(self) -> None:
        """
        Beyond the room that a block's metadata has, there are none rather than some.
        """
        assert () == stripe_metadata([1] * (STRIPES_WITH_CHECKSUM_MAX + 1))
        assert stripe_metadata([1] * STRIPES_WITH_CHECKSUM_MAX)

    def test_stripe_checksums_that_differ_between_shards_are_ignored(self) -> None:
        """Two shards with different checksums prove nothing."""
        group = BlockGroup(SCHEME, 100)
        blocks = [BlockData(BLOCK, Bcsid(1), (), stripe_metadata([value])) for value in (1, 2)]

        assert () == stripe_checksums_of(blocks, group)
        assert (1,) == stripe_checksums_of(blocks[:1], group)

    @pytest.mark.parametrize("text", ["", "AA", "AAAA", "not base64!", "AAAAAAAAAAA="])
    def test_damaged_stripe_checksums_are_ignored(self, text: str) -> None:
        """There must be exactly one checksum for each stripe."""
        block = BlockData(BLOCK, Bcsid(1), (), (("stripeChecksum.0", text),))

        assert () == stripe_checksums_of([block], BlockGroup(SCHEME, 100))

    def test_fold_the_checksums_of_cells_in_their_order(self) -> None:
        """
        Swapped cells have another stripe checksum.
        """
        one, two = chunk(0, 1, b"1111"), chunk(0, 1, b"2222")

        assert stripe_checksum([one, two]) != stripe_checksum([two, one])
