"""Which shard of a stripe is wrong."""

from collections.abc import Mapping
from itertools import combinations

import pytest

from suture.ec.cell_codec import Cell
from suture.ec.scheme import Scheme
from suture.ec.wrong_shard import Proof, StripeVerdict, judge_stripe
from suture.errors import RefusedError
from tests.support.storage.ec_groups import SMALL_SCHEMES, EncodedGroup, encoded_group

RS_3_2, RS_6_3, RS_10_4, XOR_2_1 = SMALL_SCHEMES


def spoiled(made: EncodedGroup, wrong: tuple[int, ...]) -> dict[int, Cell]:
    """The first stripe with one octet changed in each of some cells."""
    cells: dict[int, Cell] = {}
    for index, cell in made.stripes[0].items():
        cells[index] = bytes([cell[0] ^ 1]) + cell[1:] if index in wrong else cell
    return cells


def proof_of(made: EncodedGroup) -> Proof:
    """The writer's record, here all the cells."""

    def proof(cells: Mapping[int, Cell]) -> bool:
        written = {index: cell for index, cell in made.stripes[0].items() if cell}
        return {index: bytes(cell) for index, cell in cells.items()} == written

    return proof


@pytest.mark.parametrize("scheme", SMALL_SCHEMES, ids=str)
def test_a_stripe_as_written_fits(scheme: Scheme) -> None:
    """
    Full and partial stripes fit, with all cells or as few as can be.
    """
    for length_bytes in (scheme.stripe_bytes, scheme.cell_bytes + 7):
        made = encoded_group(scheme, length_bytes)
        cells = made.stripes[0]
        few = {index: cells[index] for index in range(1, scheme.data_count + 1)}

        assert StripeVerdict(fits=True) == judge_stripe(made.group, 0, cells)
        assert StripeVerdict(fits=True) == judge_stripe(made.group, 0, few, proof_of(made))


@pytest.mark.parametrize("scheme", [RS_3_2, RS_6_3, RS_10_4], ids=str)
def test_single_wrong_shard_is_named_by_redundancy(scheme: Scheme) -> None:
    """With two parity shards or more, one wrong shard is named without any record."""
    made = encoded_group(scheme, scheme.stripe_bytes)

    for index in scheme.indexes:
        verdict = judge_stripe(made.group, 0, spoiled(made, (index,)))

        assert StripeVerdict(fits=False, wrong=(index,)) == verdict


def test_two_wrong_shards_of_ten_and_four_are_named() -> None:
    """
    Four parity shards name two that are wrong.
    """
    made = encoded_group(RS_10_4, RS_10_4.stripe_bytes)

    for wrong in [(1, 2), (3, 14), (13, 14)]:
        verdict = judge_stripe(made.group, 0, spoiled(made, wrong))

        assert StripeVerdict(fits=False, wrong=wrong) == verdict


def test_wrong_shard_is_not_named_without_redundancy() -> None:
    """One parity shard shows that a shard is wrong, and not which. The same holds for two if one
    shard is absent.
    """
    single = encoded_group(XOR_2_1, XOR_2_1.stripe_bytes)
    double = encoded_group(RS_3_2, RS_3_2.stripe_bytes)
    cells = spoiled(double, (2,))
    del cells[5]

    unknown = StripeVerdict(fits=False, is_sure=False)
    assert unknown == judge_stripe(single.group, 0, spoiled(single, (1,)))
    assert unknown == judge_stripe(double.group, 0, cells)


def test_the_writers_record_names_as_many_as_parity() -> None:
    """
    With the recorded checksum even one parity shard names the wrong one, and two name two, where
    redundancy alone would name another.
    """
    single = encoded_group(XOR_2_1, XOR_2_1.stripe_bytes)
    double = encoded_group(RS_3_2, RS_3_2.stripe_bytes)

    for made, count in ((single, 1), (double, 2)):
        for wrong in combinations(made.group.scheme.indexes, count):
            verdict = judge_stripe(made.group, 0, spoiled(made, wrong), proof_of(made))

            assert StripeVerdict(fits=False, wrong=wrong) == verdict


def test_cells_that_fit_and_are_not_what_was_recorded_accuse_nobody() -> None:
    """
    A stripe that agrees with itself and not with its record has no witness against any shard.
    """
    made = encoded_group(RS_3_2, RS_3_2.stripe_bytes)

    verdict = judge_stripe(made.group, 0, made.stripes[0], lambda _: False)

    assert StripeVerdict(fits=False, is_sure=False) == verdict


def test_too_few_cells_are_refused() -> None:
    """
    With fewer cells than data shards there is no verdict.
    """
    made = encoded_group(RS_3_2, RS_3_2.stripe_bytes)

    with pytest.raises(RefusedError, match="are available"):
        judge_stripe(made.group, 0, {1: made.stripes[0][1]})
