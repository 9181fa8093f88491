"""The start: nothing is decided before the cluster is known again."""

import pytest

from scm.safemode import gate

EIGHT = [f"dn{i}" for i in range(8)]


@pytest.mark.parametrize(
    ("seen_count", "waited_s", "is_open"),
    [
        (8, 0.0, True),
        (7, 299.0, False),
        (7, 300.0, True),
        (6, 10_000.0, False),  # 75 %
        (0, 10_000.0, False),
    ],
)
def test_all_at_once_or_a_quorum_after_a_while(
    seen_count: int, waited_s: float, is_open: bool
) -> None:
    """S5.17: of ten nodes eight were online, and only these are waited for."""
    answer = gate(EIGHT, EIGHT[:seen_count], waited_s=waited_s, wait_s=300.0, quorum_percent=80)

    assert is_open is answer.is_open
    assert tuple(EIGHT[seen_count:]) == answer.missing
    assert str(seen_count) in answer.reason


def test_a_new_cluster_is_open() -> None:
    """There is nobody to wait for and nothing to lose."""
    assert gate([], ["dn1"], waited_s=0.0, wait_s=300.0, quorum_percent=80).is_open
