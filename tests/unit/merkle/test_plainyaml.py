"""A text of a descriptor means no more than it says."""

import pytest
import yaml

from merkle.safe_yaml import PlainLoader


def loaded(text: str) -> object:
    """Read a text."""
    return yaml.load(text, PlainLoader)  # noqa: S506 - it is a safe one


def nested(depth: int) -> str:
    """Return lists in a list, so many one in the other, with a number in the innermost."""
    return "[" * depth + "1" + "]" * depth


def test_plain_values_are_read() -> None:
    """Values are read to the depth of a descriptor and up to the permitted number side by side."""
    text = "{a: {b: [1, x, true]}, c: [[2], [3]]}"

    assert {"a": {"b": [1, "x", True]}, "c": [[2], [3]]} == loaded(text)
    assert [[number] for number in range(20)] == loaded(str([[n] for n in range(20)]))


def test_deeply_nested_text_is_refused() -> None:
    """Seven lists with a number in them are eight levels."""
    assert [[[[[[[1]]]]]]] == loaded(nested(7))
    with pytest.raises(yaml.YAMLError, match="nests too deep"):
        loaded(nested(8))
    with pytest.raises(yaml.YAMLError, match="nests too deep"):
        loaded(f"[1, 2, 3, {nested(7)}]")  # what lies beside it makes no room


@pytest.mark.parametrize("text", ["[&a 1, *a]", "{a: &a {b: 1}, c: {<<: *a}}"])
def test_an_alias_is_refused(text: str) -> None:
    """A few of them, each of the one before, stand for gigabytes."""
    with pytest.raises(yaml.YAMLError, match="an alias"):
        loaded(text)
