"""On how many racks a container must be, and what stands on the wrong one."""

import numpy as np
import pytest

from health.racks import misplaced_count, rack_most, racks_required


@pytest.mark.parametrize(
    ("cluster_racks", "required", "is_scattered", "racks", "on_one"),
    [
        (1, 3, False, 1, 2),
        (2, 3, False, 2, 2),
        (9, 3, False, 2, 2),
        (9, 2, False, 2, 1),
        (9, 1, False, 1, 1),
        (0, 3, False, 1, 2),
        (3, 5, True, 3, 2),
        (5, 5, True, 5, 1),
        (9, 5, True, 5, 1),
        (5, 14, True, 5, 3),
        (1, 5, True, 1, 5),
    ],
)
def test_racks_by_policy(
    cluster_racks: int, required: int, is_scattered: bool, racks: int, on_one: int
) -> None:
    """
    Copies are on two racks if there are two; shards on as many as there are, evenly.
    """
    factor, scattered = np.array([required]), np.array([is_scattered])

    assert [racks] == list(racks_required(factor, cluster_racks, is_scattered=scattered))
    assert [on_one] == list(rack_most(factor, cluster_racks, is_scattered=scattered))


@pytest.mark.parametrize(
    ("racks", "cluster_racks", "required", "is_scattered", "expected"),
    [
        ("", 3, 3, False, 0),
        ("aaa", 1, 3, False, 0),
        ("a", 3, 1, False, 0),
        ("aaa", 2, 3, False, 1),
        ("aab", 3, 3, False, 0),
        ("abc", 3, 3, False, 0),
        ("aaab", 3, 3, False, 0),
        ("aaaa", 3, 3, False, 1),
        ("abcde", 5, 5, True, 0),
        ("aabcd", 5, 5, True, 1),
        ("aaabc", 5, 5, True, 2),
        ("aaaab", 2, 5, True, 1),
        ("aaabb", 2, 5, True, 0),
        ("aaaaab", 2, 5, True, 1),
    ],
)
def test_misplaced_count_is_the_number_of_replicas_to_move(
    racks: str, cluster_racks: int, required: int, is_scattered: bool, expected: int
) -> None:
    """A surplus replica does not count as misplaced."""
    assert expected == misplaced_count(
        list(racks),
        cluster_rack_count=cluster_racks,
        required_count=required,
        is_scattered=is_scattered,
    )
