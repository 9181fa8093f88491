"""The code: the same parity as a plain computation makes, and every refusal named."""

import ctypes
import random
from typing import Any

import numpy as np
import pytest

from suture.ec import isal
from suture.ec.cell_codec import TILE_BYTES, encode, matrix, rebuild, rebuild_checked
from suture.ec.scheme import OFFERED, RS_3_2, RS_6_3, RS_10_4, XOR_2_1, Scheme
from suture.errors import Code, RefusedError
from tests.support.storage.gf256 import cauchy_rows, parity_of

SEED = 5


def cells_of(scheme: Scheme, lengths: list[int]) -> list[bytes]:
    source = random.Random(SEED)
    return [source.randbytes(length) for length in lengths[: scheme.data_count]]


class TestParity:
    @pytest.mark.parametrize("scheme", [RS_3_2, RS_6_3, RS_10_4], ids=str)
    def test_is_what_a_plain_computation_gives(self, scheme: Scheme) -> None:
        """
        The library's parity is that of GF(2^8) by its definition and Hadoop's Cauchy matrix.
        """
        data = cells_of(scheme, [257] * scheme.data_count)

        parity = encode(scheme, data)

        expected = parity_of(cauchy_rows(scheme.data_count, scheme.parity_count), data)
        assert expected == [bytes(cell) for cell in parity]

    def test_xor_parity_is_the_xor_of_the_cells(self) -> None:
        """The parity of XOR(2,1) is one cell xor the other."""
        first, second = cells_of(XOR_2_1, [300, 300])

        [parity] = encode(XOR_2_1, [first, second])

        assert bytes(a ^ b for a, b in zip(first, second, strict=True)) == bytes(parity)

    def test_parity_of_short_cells_equals_that_of_zero_padded_cells(self) -> None:
        """In a last stripe, parity is as long as the first cell, and absent octets are zeros."""
        data = cells_of(RS_6_3, [100, 40, 0, 0, 0, 0])

        parity = encode(RS_6_3, data)

        expected = parity_of(cauchy_rows(6, 3), data)
        assert [100] * 3 == [len(cell) for cell in parity]
        assert expected == [bytes(cell) for cell in parity]

    def test_matrix_of_rs_3_2_is_pinned(self) -> None:
        """
        The coefficients never change: they are in everything that was ever written.
        """
        assert [[244, 142, 1], [71, 167, 122]] == matrix(RS_3_2.codec, 3, 2)[3:].tolist()

    def test_generator_begins_with_the_identity(self) -> None:
        """
        Data shards hold the data as it is, for every scheme.
        """
        for scheme in OFFERED:
            rows = matrix(scheme.codec, scheme.data_count, scheme.parity_count)

            assert np.array_equal(np.eye(scheme.data_count), rows[: scheme.data_count])

    def test_parity_of_empty_cells_is_empty(self) -> None:
        """Each parity cell is as long as the first data cell."""
        assert [b"", b""] == [bytes(cell) for cell in encode(RS_3_2, [b"", b"", b""])]


class TestRefusals:
    def test_more_losses_than_parity(self) -> None:
        """
        With fewer cells than data shards nothing is made up; the message counts what is there.
        """
        with pytest.raises(
            RefusedError, match=r"needs 3 shards, only 2 are available: 1, 5"
        ) as caught:
            rebuild(RS_3_2, {1: b"a", 5: b"b"}, [2], 1)

        assert Code.INELIGIBLE is caught.value.code

    def test_an_index_the_scheme_has_not(self) -> None:
        """
        A replica index beyond the scheme's is refused, at hand or wanted.
        """
        cells = {1: b"a", 2: b"b", 3: b"c"}

        with pytest.raises(RefusedError, match=r"replica index 6 is not within 1\.\.5"):
            rebuild(RS_3_2, {**cells, 6: b"d"}, [4], 1)
        with pytest.raises(RefusedError, match=r"replica index 0 is not within 1\.\.5"):
            rebuild(RS_3_2, cells, [0], 1)

    def test_a_cell_longer_than_its_stripe(self) -> None:
        """
        A cell that is longer than the stripe's longest is another stripe's.
        """
        with pytest.raises(RefusedError, match="cell of 3 bytes"):
            rebuild(RS_3_2, {1: b"abc", 2: b"b", 3: b"c"}, [4], 2)

    def test_another_number_of_data_cells(self) -> None:
        """
        Encoding takes exactly one cell per data shard.
        """
        with pytest.raises(RefusedError, match="2 data cells"):
            encode(RS_3_2, [b"a", b"b"])


class TestTheWayBack:
    def test_rebuilds_the_same(self) -> None:
        """
        With the proof, what is rebuilt is what is rebuilt without it, over several tiles.
        """
        length_bytes = 2 * TILE_BYTES + 5
        data = cells_of(RS_3_2, [length_bytes] * 3)
        cells = dict(enumerate([*data, *encode(RS_3_2, data)], start=1))
        rest = {index: cell for index, cell in cells.items() if index not in (2, 4)}

        found = rebuild_checked(RS_3_2, rest, [2, 4], length_bytes)

        assert [2, 4] == list(found)
        assert all(bytes(cells[index]) == bytes(cell) for index, cell in found.items())

    def test_finds_arithmetic_that_errs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One octet that the processor computes wrongly is found by the check."""
        multiply_at = isal.multiply_at
        erred = []

        def err_once(*arguments: Any) -> None:
            multiply_at(*arguments)
            if not erred:
                erred.append(ctypes.c_ubyte.from_address(arguments[2][0]))
                erred[0].value ^= 1

        cells = dict(enumerate(cells_of(RS_3_2, [700] * 3), start=1))
        rebuild_checked(RS_3_2, cells, [4], 700)  # from here on the matrices are known
        monkeypatch.setattr(isal, "multiply_at", err_once)

        with pytest.raises(RefusedError, match="shard 3, computed from rebuilt data") as caught:
            rebuild_checked(RS_3_2, cells, [4], 700)
        assert Code.CHECKSUM_MISMATCH is caught.value.code
        assert [4] == list(rebuild_checked(RS_3_2, cells, [4], 700))
