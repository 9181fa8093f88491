"""Replicas that follow their container's state: which, and whether by force."""

from tests.support.verification.judged import judged
from tests.support.verification.snapshots import container

Close = tuple[list[int], bool, str]
"""Numbers of the replicas, by force, reason."""

UNWRITABLE, CLOSING = "open container is not writable", "container is closing"
BEHIND, FINAL = "replica is behind its container", "quasi-closed at the final BCSID"
SEEN = "most origins seen, highest BCSID"

CLOSES: tuple[tuple[str, str, list[Close]], ...] = (
    ("R OPEN 10", "O O O", []),
    ("R OPEN 10", "O G C", [([0, 1], False, UNWRITABLE)]),
    ("R OPEN 10", "O O U", [([0, 1], False, UNWRITABLE)]),
    ("EC OPEN", "O#1 O#2 U#3", [([0, 1], False, UNWRITABLE)]),
    ("R CLOSING 10", "O G C", [([0, 1], False, CLOSING)]),
    ("R CLOSING 10", "O Q U", [([0, 1], False, CLOSING)]),
    ("R CLOSING 10", "O?d C", []),
    ("R CLOSING 10", "O?s C", [([0], False, CLOSING)]),  # it is told when it is back
    ("EC CLOSING", "O#1 G#2 U#3", [([0, 1], True, CLOSING)]),  # no Ratis log to wait for
    ("R CLOSED 10", "C O G", [([1, 2], False, BEHIND)]),
    ("EC CLOSED", "C#1 C#2 C#3 O#4 G#5", [([3, 4], True, BEHIND)]),
    ("R CLOSED 10", "C Q@10 Q@9", [([1], True, FINAL)]),
    ("R CLOSED 10", "C O Q@10", [([1], False, BEHIND), ([2], True, FINAL)]),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 Q#5", []),
    ("R CLOSED 10", "C C U", []),
    ("R QUASI_CLOSED 12", "Q@12x2 O@12", [([2], False, BEHIND), ([0, 1], True, SEEN)]),
    ("R QUASI_CLOSED 12", "Q@11x2 O@12", [([2], False, BEHIND)]),  # the open one has more
    ("R QUASI_CLOSED 12", "Q@11 O@12", [([1], False, BEHIND)]),
    ("R QUASI_CLOSED 12", "Q@12 Q@11", [([0], True, SEEN)]),
    ("R QUASI_CLOSED 12", "Q@12", []),
    ("R QUASI_CLOSED 12", "Q@12 Q@12?d Q@12?d", []),  # two of three are gone with their nodes
    ("R QUASI_CLOSED 12", "Q@11 C@12", []),  # the closed one has more: it is reconciled first
    ("R QUASI_CLOSED 12", "Q@12 C@11", [([0], True, SEEN)]),
    ("R5 QUASI_CLOSED 12", "Q@12x2", []),
    ("R5 QUASI_CLOSED 12", "Q@12x3", [([0, 1, 2], True, SEEN)]),
    ("R2 QUASI_CLOSED 12", "Q@12", []),
    ("R1 QUASI_CLOSED 12", "Q@12", [([0], True, SEEN)]),
    ("R QUASI_CLOSED 12", "Q@12x2 Q@11", [([0, 1], True, SEEN)]),
    ("R QUASI_CLOSED 12", "Q@11x2 Q@10", [([0, 1], True, SEEN)]),  # the highest that was seen
    ("R QUASI_CLOSED 12", "Q@11x2 U@11", [([0, 1], True, SEEN)]),
    ("R QUASI_CLOSED 12", "Q@11x2 U@12", []),  # the bad one knows more
    ("R QUASI_CLOSED 12", "Q@12^ax3", []),  # one origin of three
    ("R QUASI_CLOSED 12", "Q@12x3 O@12", [([3], False, BEHIND), ([0, 1, 2], True, SEEN)]),
    ("EC QUASI_CLOSED", "Q#1 Q#2 Q#3 Q#4 Q#5", []),
    ("R DELETING 10", "O C", []),
    ("R DELETED 10", "O C", []),
)


def test_close_rows_name_the_replicas_and_whether_by_force() -> None:
    """All lines are in one batch, and a suppressed container is left alone."""
    parts = [container(i, *line[:2]) for i, line in enumerate(CLOSES)]
    hidden = container(len(CLOSES), "R CLOSED 10", "C O G", suppressed=True)

    rows = judged([*parts, hidden], rack_count=2)

    for i, (what, words, closes) in enumerate(CLOSES):
        found = [row for row in rows[i].plan if row.action == "close"]
        told = [
            ([int(name.rsplit("-", 1)[1]) for name in row.targets], row.is_forced, row.reason)
            for row in found
        ]
        assert (what, words, told) == (what, words, closes)
        assert {(row.priority, row.copies, row.sources, row.indexes) for row in found} <= {
            (6, 0, (), ())
        }
    assert rows[len(CLOSES)].plan == ()


def test_an_open_container_without_a_pipeline_is_closed() -> None:
    """No client can write to it, although all its replicas are open."""
    lost = container(1, "R OPEN 10", "O O O", pipeline_alive=False)

    [row] = judged([container(0, "R OPEN 10", "O O O"), lost])[1].plan

    assert (row.action, row.targets, row.is_forced) == (
        "close",
        ("dn-1-0", "dn-1-1", "dn-1-2"),
        False,
    )
