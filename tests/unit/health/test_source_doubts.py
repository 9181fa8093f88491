"""What speaks against copying a replica: findings, and the vote of the others."""

from health.judge import judge
from health.rules import Rules
from health.source_issues import DOUBTS
from tests.support.verification.judged import cut
from tests.support.verification.snapshots import container, gather

GOOD, BAD, DAMAGED = "", "UNHEALTHY", "scan findings"
LOST, SPLIT = "outvoted", "roots differ"

VOTES: tuple[tuple[str, str, list[str]], ...] = (
    ("R CLOSED", "C=7x3", [GOOD] * 3),
    ("R CLOSED", "C=7x2 C=9", [GOOD, GOOD, LOST]),
    ("R CLOSED", "C=9 C=7x2", [LOST, GOOD, GOOD]),
    ("R CLOSED", "C=7 C=9", [SPLIT, SPLIT]),
    ("R CLOSED", "C=7 C=0", [GOOD, GOOD]),  # what says nothing neither wins nor loses
    ("R CLOSED", "C=7x2 C=9x2", [SPLIT] * 4),
    ("R CLOSED", "C=7x3 C=9x2", [GOOD, GOOD, GOOD, LOST, LOST]),
    ("R CLOSED", "C=7x2 C=8 C=9", [GOOD, GOOD, LOST, LOST]),
    ("R CLOSED", "C=7x2 C=8x2 C=9", [SPLIT] * 5),  # two roots lead: nobody has won
    ("R CLOSED", "C=7 C=8x2 C=9x2", [SPLIT] * 5),
    ("R CLOSED", "C=7 C=8 C=9", [SPLIT] * 3),
    ("R CLOSED", "C=7x3 C=8x2 C=9x2", [GOOD] * 3 + [LOST] * 4),
    ("R CLOSED", "C=7x2 C=8x2 C=9x3", [LOST] * 4 + [GOOD] * 3),
    ("R CLOSED", "C=6x2 C=7x2 C=8x2 C=9x3", [LOST] * 6 + [GOOD] * 3),
    ("R CLOSED", "C=7x2 C=8x3 C=9x3", [SPLIT] * 8),
    ("R CLOSED", "U=9 C=7", [BAD, GOOD]),
    ("R CLOSED", "U=7 C=7 C=9", [BAD, SPLIT, SPLIT]),  # a bad replica has no vote
    ("R CLOSED", "C=9*1 C=7", [DAMAGED, GOOD]),
    ("R CLOSED", "C=7*1 C=7 C=9", [DAMAGED, SPLIT, SPLIT]),
    ("R CLOSED", "U=7*1", [BAD]),
    ("R CLOSED", "C=7x2 C=9?s", [GOOD, GOOD, LOST]),  # silent: it is judged, but has no vote
    ("R CLOSED", "C=7 C=9?s", [GOOD, SPLIT]),
    ("R CLOSED", "C=7?s C=9?s", [GOOD, GOOD]),
    ("R CLOSED", "C=7?s C=9x2", [LOST, GOOD, GOOD]),
    ("R CLOSED", "C=7x2 C=9?d", [GOOD, GOOD, GOOD]),  # gone: nobody copies it
    ("R CLOSED", "C=7x2 C=9?d*1", [GOOD, GOOD, GOOD]),
    ("R CLOSED", "C=7x2 C=9?d/m", [GOOD, GOOD, LOST]),
    ("R CLOSED", "O=9 C=7x2", [LOST, GOOD, GOOD]),
    ("R CLOSED", "O=9x2 C=7", [GOOD if i == 2 else SPLIT for i in range(3)]),
    ("R CLOSED", "C=7~crc32c C=9", [GOOD, GOOD]),
    ("R CLOSED", "C=7~crc32c C=9x2", [GOOD] * 3),
    ("R CLOSED", "C=7~crc32cx2 C=9~crc32c C=9", [GOOD, GOOD, LOST, GOOD]),
    ("EC CLOSED", "C#1=7 C#2=9 C#3=8", [GOOD] * 3),
    ("EC CLOSED", "C#1=7x2 C#1=9 C#2=9", [GOOD, GOOD, LOST, GOOD]),
    ("EC CLOSED", "C#1=7 C#2=7 C#2=9", [GOOD, SPLIT, SPLIT]),
    ("R CLOSED", "C=7x2 C=9", [GOOD, GOOD, LOST]),  # as the first, and as the last contest
)


def test_the_vote_says_which_replicas_are_in_doubt() -> None:
    """
    All lines in one batch: each contest is decided among its own replicas only.
    """
    batch = cut(gather(container(i, *line[:2]) for i, line in enumerate(VOTES))).batch

    found = judge(batch, Rules()).source_issues

    words: dict[int, dict[int, str]] = {i: {} for i in range(len(VOTES))}
    for row, code in enumerate(found.tolist()):
        name = batch.nodes.names[batch.replicas.node[row]]
        words[int(batch.replicas.container[row])][int(name.rsplit("-", 1)[1])] = DOUBTS[code]
    told = [[words[i][number] for number in sorted(words[i])] for i in range(len(VOTES))]
    assert [(*line[:2], told[i]) for i, line in enumerate(VOTES)] == list(VOTES)


def test_doubts_without_known_roots_are_none() -> None:
    """A batch without any root and one without replicas have no vote."""
    silent = cut(container(1, "R CLOSED", "C C U")).batch
    bare = cut(container(1, "R CLOSED")).batch

    assert [DOUBTS[code] for code in judge(silent, Rules()).source_issues] == [GOOD, GOOD, BAD]
    assert judge(bare, Rules()).source_issues.tolist() == []
