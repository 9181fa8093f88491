"""Databases of Ozone that lost something and can be opened all the same."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ozone.scrub.history import History
from ozone.scrub.result import ContainerResult, ScrubStatus
from ozone.scrub.scrub import ScrubOptions
from scanner.finding import DamageFault
from tests.support.ozone.ozone_scrubs import damage, running_volume, scrubbed
from tests.support.ozone.ozone_volumes import MadeVolume


@pytest.mark.parametrize("has_tree", [False, True])
def test_a_list_of_files_that_was_cut_is_no_container_without_blocks(
    tmp_path: Path, has_tree: bool
) -> None:
    """RocksDB takes a truncated manifest for an earlier one with fewer tables. Every block file
    would then count as uncommitted, and the container as whole. No cut makes a damaged container
    whole.
    """
    with running_volume(tmp_path / "data") as made:
        if has_tree:
            made.put_tree(1, {9: [], 10: []})
        made.file(1, 10).unlink()
        (manifest,) = made.database.glob("MANIFEST-*")
        data = manifest.read_bytes()
        statuses = set()
        for length_bytes in range(0, len(data), 3):
            manifest.write_bytes(data[:length_bytes])
            state = tmp_path / f"state-{length_bytes}"
            result = scrubbed(ScrubOptions(data_dirs=[made.root], state_dir=state))[1]
            statuses.add(result.status)
            if result.status is ScrubStatus.DAMAGED:
                assert {
                    (10, DamageFault.BLOCK_FILE_MISSING),
                    (9, DamageFault.BLOCK_ROW_MISSING),
                } & set(damage(result))
        manifest.write_bytes(data)

    assert ScrubStatus.NOT_READ in statuses
    assert ScrubStatus.WHOLE not in statuses


def remembered(state_dir: Path) -> Sequence[ContainerResult]:
    """Return what the history of the volume says."""
    (path,) = state_dir.glob("*.sqlite")
    with closing(History(path)) as history:
        return list(history.results())


def lose_log(made: MadeVolume) -> None:
    """Lose what was written last, as a host does whose power fails: Ozone syncs no row."""
    for log in made.database.glob("*.log"):
        log.unlink()


def test_rows_that_went_with_the_log_leave_no_container_that_is_whole(tmp_path: Path) -> None:
    """The lost log had rows that were in no table yet, while the count of blocks was. Each
    remaining block is whole, and without a tree only the count reveals the others.
    """
    with running_volume(tmp_path / "data") as made:
        made.flush("block_data")
        made.add_block(1, 11, b"eleven" * 100)
        made.flush("metadata")
        lose_log(made)

        (result,) = scrubbed(
            ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state")
        ).values()

    assert (ScrubStatus.DOUBTFUL, 2) == (result.status, result.block_count)
    assert ("the database counts 3 blocks and has the rows of 2",) == result.caveats()


def test_a_database_that_lost_all_it_had_leaves_no_container_that_is_whole(
    tmp_path: Path,
) -> None:
    """
    Nothing had come into a table, not even the count: what is empty now has files of blocks.
    """
    with running_volume(tmp_path / "data") as made:
        lose_log(made)

        (result,) = scrubbed(
            ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state")
        ).values()

    assert (ScrubStatus.DOUBTFUL, 0) == (result.status, result.block_count)
    assert (
        "the database has no count of its blocks, which Ozone always keeps",
    ) == result.caveats()


def test_volume_that_lost_rows_is_remembered_as_doubtful(tmp_path: Path) -> None:
    """The service shows what its history has. A history from before this doubt existed can still
    be read.
    """
    wish = ScrubOptions(data_dirs=[tmp_path / "data"], state_dir=tmp_path / "state")
    with running_volume(tmp_path / "data") as made:
        scrubbed(wish)
        (before,) = remembered(wish.state_dir)
        made.count(1, 1)
        scrubbed(replace(wish, restart=True))
        (after,) = remembered(wish.state_dir)

    assert (ScrubStatus.WHOLE, ScrubStatus.DOUBTFUL) == (before.status, after.status)


def test_a_container_that_never_had_a_block_is_whole(tmp_path: Path) -> None:
    """
    Ozone begins to count with the first block.
    """
    with running_volume(tmp_path / "data") as made:
        made.add_container(2)

        results = scrubbed(ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state"))

    assert {ScrubStatus.WHOLE} == {result.status for result in results.values()}


def test_a_count_that_is_behind_its_rows_is_no_doubt(tmp_path: Path) -> None:
    """
    Nothing is missing from what is there.
    """
    with running_volume(tmp_path / "data") as made:
        made.count(1, -1)

        (result,) = scrubbed(
            ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state")
        ).values()

    assert ScrubStatus.WHOLE is result.status
