"""`suture salvage` of block groups whose shards tell different lengths."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.salvage.salvage import SalvageSummary, salvage
from suture.ec.scheme import CodecName, Scheme
from tests.support.storage.ec_cluster import CONTAINER, EcCluster, groups_of
from tests.support.storage.ec_groups import EncodedGroup, cut_group

RS_3_2 = Scheme(CodecName.RS, 3, 2, 4096)
LENGTH_BYTES = 100_000
WHOLE_STRIPES = LENGTH_BYTES // RS_3_2.stripe_bytes
FILE = f"blocks/{CONTAINER}/1.bin"


def salvaged(
    path: Path, stale: Sequence[int], stripe_count: int, *, of: Sequence[int] = (1, 2, 3, 4, 5)
) -> tuple[EncodedGroup, SalvageSummary, Path]:
    """Write a group, of which some shards have so many stripes only; salvage the volumes `of`."""
    groups = groups_of(RS_3_2, [LENGTH_BYTES])
    short = {1: cut_group(groups[1], stripe_count)}
    cluster = EcCluster(path, RS_3_2, [LENGTH_BYTES], instead=dict.fromkeys(stale, short))
    volumes = [volume.path for i in of for volume in cluster.nodes[i].store.volumes()]
    cluster.close()
    summary = salvage(volumes, path / "out", scheme=RS_3_2)
    return groups[1], summary, path / "out" / FILE


@pytest.mark.parametrize("stale", [(1,), (5,), (1, 5), (2, 3)], ids=str)
@pytest.mark.parametrize("stripe_count", [0, 1, WHOLE_STRIPES])
def test_group_length_that_enough_shards_have_is_salvaged_whole(
    tmp_path: Path, stale: tuple[int, ...], stripe_count: int
) -> None:
    """All five shards acknowledged the group, and one or two are from before, as after a lost
    sync or a restored copy. The salvaged file has its full length.
    """
    made, summary, file = salvaged(tmp_path, stale, stripe_count)

    assert summary.is_whole, summary.incomplete_files
    assert made.data == file.read_bytes()


def test_group_length_that_too_few_shards_have_is_cut(tmp_path: Path) -> None:
    """Two shards are no code word, so the file ends where three shards have it, byte for byte."""
    made, _summary, file = salvaged(tmp_path, (3, 4, 5), 1)

    assert made.data[: RS_3_2.stripe_bytes] == file.read_bytes()


def test_shards_that_have_more_serve_what_all_have(tmp_path: Path) -> None:
    """
    Three volumes are left, and one of them is stale: their first stripe is whole.
    """
    made, _summary, file = salvaged(tmp_path, (4,), 1, of=(1, 2, 4))

    assert made.data[: RS_3_2.stripe_bytes] == file.read_bytes()
