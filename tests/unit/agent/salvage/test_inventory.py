"""Which put of a key has its path."""

from agent.salvage.inventory import files_to_write
from suture.client.put_metadata import PartBlock, PutMetadata, files_of


def part(key: str, local_id: int, put_id: str, number: int = 0, count: int = 1) -> PartBlock:
    """A block of a put whose parts have ten bytes each."""
    return PartBlock(1, local_id, 5, 10, key, number, PutMetadata(put_id, count, 10 * count, 7))


def test_the_newest_that_is_whole_has_the_path() -> None:
    """
    An older one is beside it, under its block's id; so is a newer one of which a part is nowhere.
    """
    found = files_of(
        [part("a", 1, "p"), part("a", 2, "q"), part("a", 9, "r", count=2), part("b", 3, "s")]
    )

    wanted = {one.path: (one.blocks[0][1], bool(one.lack)) for one in files_to_write(found)}

    assert {
        "keys/a%~1": (1, False),
        "keys/a": (2, False),
        "keys/a%~9": (9, True),
        "keys/b": (3, False),
    } == wanted


def test_newest_incomplete_put_gets_the_path() -> None:
    """The missing parts are reported."""
    found = files_of([part("a", 1, "p", count=2), part("a", 4, "q", 1, count=3)])

    older, newest = files_to_write(found)

    assert ("keys/a%~1", "keys/a") == (older.path, newest.path)
    assert "it has parts [1] of 3, 10 of 30 bytes" == newest.lack
