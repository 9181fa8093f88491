"""Databases of Ozone that lost something and can be opened all the same."""

from pathlib import Path

import pytest

from ozone.scrub.result import Standing
from ozone.scrub.scrub import ScrubWish
from scanner.finding import Fault
from tests.support.ozone.ozone_scrubs import damage, running_volume, scrubbed


@pytest.mark.parametrize("has_tree", [False, True])
def test_a_list_of_files_that_was_cut_is_no_container_without_blocks(
    tmp_path: Path, has_tree: bool
) -> None:
    """
    RocksDB takes a manifest that ends early for one of earlier, without tables or with the first of
    them: then every file of a block would be one that nobody committed, and its container whole.
    Nowhere a cut makes a container whole that it is not.
    """
    with running_volume(tmp_path / "data") as made:
        if has_tree:
            made.put_tree(1, {9: [], 10: []})
        made.file(1, 10).unlink()
        (manifest,) = made.database.glob("MANIFEST-*")
        data = manifest.read_bytes()
        standings = set()
        for length_bytes in range(0, len(data), 3):
            manifest.write_bytes(data[:length_bytes])
            state = tmp_path / f"state-{length_bytes}"
            result = scrubbed(ScrubWish(data_dirs=[made.root], state_dir=state))[1]
            standings.add(result.standing)
            if result.standing is Standing.DAMAGED:
                assert {(10, Fault.BLOCK_FILE_MISSING), (9, Fault.BLOCK_ROW_MISSING)} & set(
                    damage(result)
                )
        manifest.write_bytes(data)

    assert Standing.NOT_READ in standings
    assert Standing.WHOLE not in standings
