"""The one state that the chain of handlers leaves, and its queue, where handlers meet."""

from tests.support.verification.judged import judged
from tests.support.verification.snapshots import container

MEETINGS: tuple[tuple[str, str, str, str, str], ...] = (
    # container, replicas, ops, state, queue
    ("R CLOSED 10", "C C C C", "-n0", "OVER_REPLICATED", "-"),  # fixed when the delete is done
    ("R CLOSED 10", "C C C C C", "-n0", "OVER_REPLICATED", "O"),
    ("R CLOSED 10", "C C C U", "-n3", "OVER_REPLICATED", "-"),
    ("R CLOSED 10", "C C C U U", "-n3", "OVER_REPLICATED", "O"),
    ("R CLOSED 10", "U U U U", "-n0", "UNHEALTHY_OVER_REPLICATED", "-"),
    ("R CLOSED 10", "U U U U U", "-n0", "UNHEALTHY_OVER_REPLICATED", "O"),
    ("R CLOSED 10", "U U U", "", "UNHEALTHY", "-"),
    ("R CLOSED 10", "I I I", "", "MISSING", "-"),
    # Stuck, but every origin writes: counted as any other container, and then called stuck.
    ("R QUASI_CLOSED 12", "Q@11x2 O@12", "", "QUASI_CLOSED_STUCK", "-"),
    ("R QUASI_CLOSED 12", "Q@12x2 O@12", "", "HEALTHY", "-"),  # two of three have closed
    ("R QUASI_CLOSED 12", "Q@12 O@12", "", "QUASI_CLOSED_STUCK_UNDER_REPLICATED", "U"),
    ("R QUASI_CLOSED 12", "Q@12x2 O@12 O@12", "", "OVER_REPLICATED", "-"),
    ("R QUASI_CLOSED 12", "Q@12^ax3", "", "QUASI_CLOSED_STUCK", "-"),
    ("R QUASI_CLOSED 12", "Q@12x3", "", "HEALTHY", "-"),
    # A bad replica is one too many only where its origin has another.
    ("R QUASI_CLOSED 10", "Q^a Q^b Q^c U^a", "", "OVER_REPLICATED", "O"),
    ("R QUASI_CLOSED 10", "Q^a Q^b Q^c U^d", "", "HEALTHY", "-"),
    ("R QUASI_CLOSED 10", "Q^a?s Q^b Q^c U^a", "", "HEALTHY", "-"),
    # Nothing but bad replicas, even beside what is no replica: handler 7 passes it on.
    ("R QUASI_CLOSED 11", "U@11^a U@11^b", "", "UNHEALTHY_UNDER_REPLICATED", "U"),
    ("R QUASI_CLOSED 11", "U@11^a U@11^b I", "", "UNHEALTHY_UNDER_REPLICATED", "U"),
    ("R QUASI_CLOSED 11", "U@11^a U@11^b Q?d", "", "UNHEALTHY_UNDER_REPLICATED", "U"),
    # Enough copies of each origin, yet the last commit of one is on a bad replica only.
    ("R QUASI_CLOSED 11", "Q@10^ax3 U@11^c/m Q@9^c", "", "UNHEALTHY_UNDER_REPLICATED", "U"),
    ("R QUASI_CLOSED 11", "Q@10^ax3 U@11^c/m U@11^c", "", "QUASI_CLOSED_STUCK", "-"),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 Q@9#5", "", "UNDER_REPLICATED", "U"),  # it lacks a commit
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5 U#5", "", "UNHEALTHY_OVER_REPLICATED", "-"),
    ("EC QUASI_CLOSED", "C#1 C#2 C#3 C#4 C#5 U#5", "", "HEALTHY", "-"),  # only when it is closed
)


def test_the_state_is_the_last_that_a_handler_set() -> None:
    """Each line has one container, and several handlers apply to each."""
    parts = [container(i, *line[:3]) for i, line in enumerate(MEETINGS)]

    rows = judged(parts)

    told = [
        (*line[:3], rows[i].opinion.state, rows[i].opinion.queue) for i, line in enumerate(MEETINGS)
    ]
    assert told == list(MEETINGS)
