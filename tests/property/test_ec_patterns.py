"""Every pattern of losses that a code promises to survive gives the bytes back."""

from itertools import combinations

import pytest

from suture.ec.cell_codec import rebuild
from suture.ec.scheme import Scheme
from suture.errors import RefusedError
from tests.support.storage.ec_groups import SMALL_SCHEMES, encoded_group, lengths_bytes


@pytest.mark.parametrize("scheme", SMALL_SCHEMES, ids=str)
@pytest.mark.parametrize("length", lengths_bytes(SMALL_SCHEMES[0]))
def test_every_loss_within_the_parity_is_made_good(scheme: Scheme, length: str) -> None:
    """
    Up to `parity` lost shards, whichever they are: full, partial and mixed stripes come back
    byte for byte.
    """
    made = encoded_group(scheme, lengths_bytes(scheme)[length])

    for count in range(1, scheme.parity_count + 1):
        for lost in combinations(scheme.indexes, count):
            for stripe, cells in enumerate(made.stripes):
                rest = {index: cell for index, cell in cells.items() if index not in lost}
                found = rebuild(scheme, rest, lost, made.group.cell_bytes_max(stripe))
                for index in lost:
                    length_bytes = made.group.cell_bytes(stripe, index)
                    assert cells[index] == bytes(found[index])[:length_bytes]
                    assert not any(found[index][length_bytes:])


@pytest.mark.parametrize("scheme", SMALL_SCHEMES, ids=str)
def test_every_greater_loss_is_refused(scheme: Scheme) -> None:
    """With one lost shard more than parity, whichever they are, the call is refused and returns
    nothing.
    """
    [cells] = encoded_group(scheme, scheme.stripe_bytes).stripes

    for lost in combinations(scheme.indexes, scheme.parity_count + 1):
        rest = {index: cell for index, cell in cells.items() if index not in lost}
        with pytest.raises(RefusedError, match="are available"):
            rebuild(scheme, rest, lost, scheme.cell_bytes)
