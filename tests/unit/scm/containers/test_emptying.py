"""When a container is deleted as a whole, and what brings it back."""

from dataclasses import replace

import pytest

from merkle.replica import ReplicaState
from scm.cluster.lifecycle import ContainerEvent, advance
from scm.containers.empty_container_rules import EmptyingStep, next_step
from scm.state.entities import ContainerState, Replica
from tests.support.control.scm_world import container, replica

CLOSED, QUASI_CLOSED = ContainerState.CLOSED, ContainerState.QUASI_CLOSED
DELETING, DELETED = ContainerState.DELETING, ContainerState.DELETED
STATES = {
    "C": ReplicaState.CLOSED,
    "Q": ReplicaState.QUASI_CLOSED,
    "U": ReplicaState.UNHEALTHY,
    "O": ReplicaState.OPEN,
}
ALL = ("dn1", "dn2", "dn3")


def replicas(words: str) -> list[Replica]:
    """Read `C! C@4 O`: state, bcsid; `!` means empty."""
    made = []
    for i, word in enumerate(words.split()):
        state, _, bcsid = word.rstrip("!").partition("@")
        one = replica(f"dn{i + 1}", STATES[state], bcsid=int(bcsid or 5))
        made.append(replace(one, is_empty=word.endswith("!")))
    return made


@pytest.mark.parametrize(
    ("row", "state", "words", "expected"),
    [
        ("W7", CLOSED, "C! C! C!", EmptyingStep(ContainerEvent.EMPTIED, ALL)),
        ("W8", CLOSED, "C@4! C@4! C@4!", EmptyingStep(None, ALL)),
        ("one behind", CLOSED, "C! C! Q@4!", EmptyingStep(ContainerEvent.EMPTIED, ALL)),
        ("W10", CLOSED, "C! C! C", EmptyingStep()),
        ("W11", CLOSED, "O! O! O!", EmptyingStep()),
        ("unhealthy", CLOSED, "C! C! U!", EmptyingStep()),
        ("no replica", CLOSED, "", EmptyingStep()),
        (
            "quasi-closed",
            QUASI_CLOSED,
            "Q! C! U!",
            EmptyingStep(ContainerEvent.EMPTIED, ("dn1", "dn2")),
        ),
        ("W13", DELETING, "C! C! C!", EmptyingStep(None, ALL)),
        ("last one gone", DELETING, "", EmptyingStep(ContainerEvent.CLEANED_UP)),
        ("it stays gone", DELETED, "", EmptyingStep()),
        ("W59", DELETED, "C!", EmptyingStep(None, ("dn1",))),
        ("W61", DELETING, "O", EmptyingStep(ContainerEvent.RETURNED)),
        ("an unhealthy one with data", DELETED, "U", EmptyingStep(ContainerEvent.RETURNED)),
        ("closed, newer than known", DELETED, "C@6", EmptyingStep(ContainerEvent.RETURNED_CLOSED)),
        ("closed, as known", DELETED, "C! C", EmptyingStep(None, ("dn1",), ("dn2",))),
        ("still open", ContainerState.OPEN, "C! C! C!", EmptyingStep()),
        ("still closing", ContainerState.CLOSING, "C! C! C!", EmptyingStep()),
        ("one open", CLOSED, "C! C! O!", EmptyingStep()),
        ("the proof is a closed one", CLOSED, "Q! Q! Q!", EmptyingStep(None, ALL)),
        ("more than committed proves nothing", CLOSED, "C@6! C@6! C@6!", EmptyingStep(None, ALL)),
        ("one proof is enough", CLOSED, "C@4! C! C@4!", EmptyingStep(ContainerEvent.EMPTIED, ALL)),
        ("quasi-closed, one with data", QUASI_CLOSED, "Q! Q! Q", EmptyingStep()),
        (
            "quasi-closed, one open",
            QUASI_CLOSED,
            "Q! O! Q@4!",
            EmptyingStep(ContainerEvent.EMPTIED, ("dn1", "dn3")),
        ),
        ("quasi-closed, no replica", QUASI_CLOSED, "", EmptyingStep()),
        ("quasi-closed data, as known", DELETING, "Q@4 C!", EmptyingStep(None, ("dn2",), ("dn1",))),
        (
            "quasi-closed data, newer than known",
            DELETED,
            "Q@6",
            EmptyingStep(ContainerEvent.RETURNED),
        ),
        (
            "one of two newer than known",
            DELETED,
            "C Q@6",
            EmptyingStep(ContainerEvent.RETURNED_CLOSED),
        ),
        ("an open one, as known, is closed first", DELETED, "C! O@4", EmptyingStep(None, ("dn1",))),
        ("beside a closed one", DELETED, "C O", EmptyingStep(None, (), ("dn1",))),
        ("an open one, newer than known", DELETED, "C! O@6", EmptyingStep(ContainerEvent.RETURNED)),
        ("of one that is being deleted", DELETING, "C! O@4", EmptyingStep(ContainerEvent.RETURNED)),
    ],
)
def test_a_container_goes_when_it_is_empty_and_returns_with_data(
    row: str, state: ContainerState, words: str, expected: EmptyingStep
) -> None:
    """Container bcsid is 5; a datanode looks for itself before it deletes without force."""
    assert expected == next_step(container(state), replicas(words), is_unused=True), row


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("C! C! U!", EmptyingStep(ContainerEvent.EMPTIED, ("dn1", "dn2"))),
        ("C! C@4! U!", EmptyingStep(ContainerEvent.EMPTIED, ("dn1", "dn2"))),
        ("C! C! U", EmptyingStep()),  # it has data
        ("C! C! U@6!", EmptyingStep()),  # it had commits that nobody else had
        ("C@4! C@4! U!", EmptyingStep()),  # nobody else had all that was committed
        ("C! C U!", EmptyingStep()),
        ("U! U! U!", EmptyingStep()),
        ("C! C! C", EmptyingStep()),  # it leaves, but is not damaged
        ("C! C! O!", EmptyingStep()),
    ],
)
def test_damaged_empty_replica_on_a_leaving_node_does_not_block(
    words: str, expected: EmptyingStep
) -> None:
    """No repair and no delete happens there, so the container would stay empty for ever."""
    held = replicas(words)

    assert expected == next_step(container(), held, is_unused=True, leaving=frozenset({"dn3"}))
    assert EmptyingStep() == next_step(container(), held, is_unused=True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("C@0! C@0!", EmptyingStep(None, ("dn1", "dn2"))),
        ("", EmptyingStep(ContainerEvent.CLEANED_UP)),
        ("C@0! C@1", EmptyingStep(ContainerEvent.RETURNED_CLOSED)),
        ("C@0! C@0", EmptyingStep(ContainerEvent.RETURNED_CLOSED)),
        ("O@0! O@1", EmptyingStep(ContainerEvent.RETURNED)),
    ],
)
def test_unwritten_container_is_deleted_and_returns_with_data(
    words: str, expected: EmptyingStep
) -> None:
    """A client may write late, to a container that was closed before its first commit."""
    unwritten = container(DELETING, sequence_id=0, committed_count=0)

    assert expected == next_step(unwritten, replicas(words), is_unused=True)


@pytest.mark.parametrize(
    ("state", "words", "expected"),
    [
        (CLOSED, "C! C! C!", EmptyingStep()),
        (QUASI_CLOSED, "C! C! C!", EmptyingStep()),
        (DELETED, "C", EmptyingStep(ContainerEvent.RETURNED_CLOSED)),
        (DELETING, "C! C!", EmptyingStep(None, ("dn2",))),
        (DELETED, "U", EmptyingStep(ContainerEvent.RETURNED)),
    ],
)
def test_unloadable_replica_gives_no_information(
    state: ContainerState, words: str, expected: EmptyingStep
) -> None:
    """The unloadable replica proves neither that the container is empty nor that its data was
    deleted. The first replica is unloadable.
    """
    first, *others = replicas(words)
    unloadable = replace(first, load_error="no descriptor")

    given = next_step(container(state), [unloadable, *others], is_unused=True)
    assert expected == given


def test_unloadable_replica_on_a_leaving_node_blocks_the_delete() -> None:
    """Its claim to be empty is in doubt."""
    first, second, third = replicas("C! C! U!")
    unloadable = replace(third, load_error="no descriptor")

    found = next_step(
        container(), [first, second, unloadable], is_unused=True, leaving=frozenset({"dn3"})
    )

    assert EmptyingStep() == found


def test_a_good_replica_goes_with_the_others_also_where_it_leaves() -> None:
    """The good replica neither blocks the delete nor is left out."""
    held = replicas("C! C! C!")

    found = next_step(container(), held, is_unused=True, leaving=frozenset({"dn3"}))

    assert EmptyingStep(ContainerEvent.EMPTIED, ALL) == found


def test_deleted_unwritten_container_gets_no_step() -> None:
    """Any replica brings it back, which is decided elsewhere."""
    unwritten = container(DELETED, sequence_id=0, committed_count=0)

    assert EmptyingStep() == next_step(unwritten, replicas("C@0! C@0"), is_unused=True)


@pytest.mark.parametrize(
    ("state", "words", "expected"),
    [
        (CLOSED, "C! C! C!", EmptyingStep()),
        (DELETED, "C", EmptyingStep(ContainerEvent.RETURNED_CLOSED)),  # W14: no command destroys it
    ],
)
def test_container_that_a_key_needs_is_never_deleted(
    state: ContainerState, words: str, expected: EmptyingStep
) -> None:
    """The claims of its replicas do not matter."""
    assert expected == next_step(container(state), replicas(words), is_unused=False)


@pytest.mark.parametrize(
    ("before", "event", "after"),
    [
        (CLOSED, ContainerEvent.EMPTIED, DELETING),
        (DELETING, ContainerEvent.CLEANED_UP, DELETED),
        (DELETING, ContainerEvent.RETURNED, QUASI_CLOSED),
        (DELETED, ContainerEvent.RETURNED_CLOSED, CLOSED),
        (CLOSED, ContainerEvent.CLEANED_UP, CLOSED),
        (ContainerState.OPEN, ContainerEvent.EMPTIED, ContainerState.OPEN),
    ],
)
def test_events_move_the_state(
    before: ContainerState, event: ContainerEvent, after: ContainerState
) -> None:
    """An event does nothing in a state that it does not apply to."""
    assert after is advance(container(before), event, now_ms=1).state
