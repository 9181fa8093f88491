"""The state table: every pair is either in it or refused."""

import itertools

import pytest

from agent.store.replica.states import FORMER_STATE, NEXT, ReplicaEvent, healing_event, next_state
from merkle.replica import ContainerId, ReplicaState
from suture.errors import Code, RefusedError

S = ReplicaState
E = ReplicaEvent

# state -> event -> next state; a pair that is not here must be refused
EXPECTED: dict[ReplicaState, dict[ReplicaEvent, ReplicaState]] = {
    S.OPEN: {
        E.CLOSE_BEGAN: S.CLOSING,
        E.DAMAGE_FOUND: S.UNHEALTHY,
        E.DELETE_BEGAN: S.DELETED,
    },
    S.CLOSING: {
        E.CLOSE_BEGAN: S.CLOSING,
        E.CLOSED_WHOLE: S.CLOSED,
        E.CLOSED_SHORT: S.QUASI_CLOSED,
        E.DAMAGE_FOUND: S.UNHEALTHY,
        E.DELETE_BEGAN: S.DELETED,
    },
    S.QUASI_CLOSED: {
        E.CLOSED_WHOLE: S.CLOSED,
        E.CLOSED_SHORT: S.QUASI_CLOSED,
        E.DAMAGE_FOUND: S.UNHEALTHY,
        E.DELETE_BEGAN: S.DELETED,
    },
    S.CLOSED: {
        E.CLOSED_WHOLE: S.CLOSED,
        E.CLOSED_SHORT: S.CLOSED,
        E.DAMAGE_FOUND: S.UNHEALTHY,
        E.DELETE_BEGAN: S.DELETED,
    },
    S.UNHEALTHY: {
        E.DAMAGE_FOUND: S.UNHEALTHY,
        E.HEALED_CLOSED: S.CLOSED,
        E.HEALED_QUASI_CLOSED: S.QUASI_CLOSED,
        E.DELETE_BEGAN: S.DELETED,
    },
    S.RECOVERING: {
        E.CLOSE_BEGAN: S.CLOSING,
        E.DAMAGE_FOUND: S.UNHEALTHY,
        E.EXPIRED: S.UNHEALTHY,
        E.DELETE_BEGAN: S.DELETED,
    },
    S.DELETED: {E.DELETE_BEGAN: S.DELETED},
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(S, E)))
def test_every_pair_leads_where_the_design_says_or_is_refused(
    state: ReplicaState, event: ReplicaEvent
) -> None:
    """No event leads to a state outside the table."""
    expected = EXPECTED[state].get(event)

    if expected is None:
        with pytest.raises(RefusedError, match=f"container 7 is {state}") as refusal:
            next_state(state, event, ContainerId(7))
        assert Code.INVALID_CONTAINER_STATE is refusal.value.code
    else:
        assert expected is next_state(state, event, ContainerId(7))


def test_deleted_state_has_no_successor() -> None:
    """A deleted replica never comes back."""
    following = {NEXT[pair] for pair in NEXT if pair[0] is S.DELETED}

    assert {S.DELETED} == following


def test_an_open_replica_that_was_damaged_heals_to_quasi_closed_at_most() -> None:
    """Writes ended when it became UNHEALTHY, and no commit confirmed that it has all of them."""
    assert S.QUASI_CLOSED is FORMER_STATE[S.OPEN]
    assert ReplicaEvent.HEALED_QUASI_CLOSED is healing_event(FORMER_STATE[S.OPEN])


def test_an_unfinished_reconstruction_never_heals() -> None:
    """
    A half-built replica reads clean, and is half a replica all the same.
    """
    assert FORMER_STATE[S.RECOVERING] is None
    assert healing_event(FORMER_STATE[S.RECOVERING]) is None
