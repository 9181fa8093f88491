"""Whatever a key is called, its file lands inside, and is no other key's."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.salvage.safe_paths import LONG, PART_BYTES_MAX, older, path_of, paths_of

KEYS = st.text(st.characters(exclude_categories=())) | st.text("aAbB./\\%~ \0é", max_size=12)
FILE_NAME_BYTES_MAX = 255
PATH_BYTES_MAX = 4_000


@given(st.lists(KEYS, max_size=30))
def test_every_path_is_safe_and_its_own(keys: list[str]) -> None:
    """No part has a special meaning to a file system. No two paths are equal, and none is the
    folder of another, also on a file system that ignores case.
    """
    paths = paths_of(keys)

    assert set(keys) == set(paths)
    folded = [path.casefold() for path in paths.values()]
    assert len(set(folded)) == len(folded)
    for path in paths.values():
        pure = PurePosixPath(path)
        assert not pure.is_absolute()
        assert path == str(pure)  # nothing is empty, nothing is a dot
        assert ".." not in pure.parts
        assert path.isascii()
        assert path.isprintable()
        assert not set(path) & set('\\:*?"<>|')
        assert max(map(len, pure.parts)) <= FILE_NAME_BYTES_MAX - 40  # room for what comes behind
        assert len(path) <= PATH_BYTES_MAX
        assert not any(str(parent).casefold() in folded for parent in pure.parents)


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("docs/read me.txt", "docs/read me.txt"),
        ("../../etc/passwd", "%2E%2E/%2E%2E/etc/passwd"),
        ("/etc/passwd", "%/etc/passwd"),
        ("a//b", "a/%/b"),
        (".", "%2E"),
        ("", "%"),
        ("nul\0", "nul%00"),
        ("50%", "50%25"),
        ("%2E%2E", "%252E%252E"),
        ("C:\\x", "C%3A%5Cx"),
        ("ends. ", "ends%2E%20"),
        (".hidden", ".hidden"),
        ("é", "%C3%A9"),
    ],
)
def test_a_path_is_as_written(key: str, path: str) -> None:
    """Harmless characters stay readable."""
    assert path == path_of(key)


def test_long_path_is_cut_and_kept_distinct() -> None:
    """The limits are for a part, a path, and the number of parts; a name may also be all dots."""
    one, other = path_of("x" * 1_000 + "1"), path_of("x" * 1_000 + "2")
    assert one != other
    assert max(len(one), len(other)) <= PART_BYTES_MAX
    assert path_of("/".join(["y" * 100] * 20)).startswith(f"{LONG}/")
    assert path_of("z/" * 100).startswith(f"{LONG}/")
    assert len(path_of("." * 1_000)) <= PART_BYTES_MAX
    assert len(path_of("é" * 500)) <= PART_BYTES_MAX


def test_keys_that_would_meet_are_told_apart() -> None:
    """
    By case, and where one key is the folder of another; one of them keeps the plain path.
    """
    paths = paths_of(["a", "A", "dir", "dir/file", "DIR"])

    assert "dir/file" == paths["dir/file"]
    assert {"a", "A"} & {paths["a"], paths["A"]}
    assert 5 == len({path.casefold() for path in paths.values()})
    assert older("a", 7) not in paths.values()
