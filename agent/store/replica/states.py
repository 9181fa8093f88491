"""State machine of a replica, as one table.

    OPEN ──► CLOSING ──► QUASI_CLOSED ──► CLOSED          any of them ──► UNHEALTHY, DELETED
    RECOVERING ─┘   └──────────────────────► CLOSED       UNHEALTHY ──► its former state, healed

`NEXT` has all transitions. Any other pair of state and event is refused. In Ozone, UNHEALTHY is
final. In Suture, a full scan without findings ends it, if the replica was closed before the damage.
A damaged OPEN replica returns to QUASI_CLOSED at most. An unfinished reconstruction stays
UNHEALTHY.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from merkle.replica import ContainerId, ReplicaState
from suture.errors import Code, RefusedError

_OPEN = ReplicaState.OPEN
_CLOSING = ReplicaState.CLOSING
_QUASI = ReplicaState.QUASI_CLOSED
_CLOSED = ReplicaState.CLOSED
_UNHEALTHY = ReplicaState.UNHEALTHY
_RECOVERING = ReplicaState.RECOVERING
_DELETED = ReplicaState.DELETED


class ReplicaEvent(StrEnum):
    """Events that change the state of a replica."""

    CLOSE_BEGAN = "CLOSE_BEGAN"  # writes are rejected from now on
    CLOSED_WHOLE = "CLOSED_WHOLE"  # the BCSID has reached the control plane's, or forced
    CLOSED_SHORT = "CLOSED_SHORT"  # the BCSID is below the control plane's
    DAMAGE_FOUND = "DAMAGE_FOUND"
    HEALED_CLOSED = "HEALED_CLOSED"  # a clean full read of a replica that was CLOSED before
    HEALED_QUASI_CLOSED = "HEALED_QUASI_CLOSED"
    EXPIRED = "EXPIRED"  # a restart or a deadline ended the reconstruction
    DELETE_BEGAN = "DELETE_BEGAN"


NEXT: Final[Mapping[tuple[ReplicaState, ReplicaEvent], ReplicaState]] = MappingProxyType(
    {
        (_OPEN, ReplicaEvent.CLOSE_BEGAN): _CLOSING,
        (_RECOVERING, ReplicaEvent.CLOSE_BEGAN): _CLOSING,
        (_CLOSING, ReplicaEvent.CLOSE_BEGAN): _CLOSING,
        (_CLOSING, ReplicaEvent.CLOSED_WHOLE): _CLOSED,
        (_CLOSING, ReplicaEvent.CLOSED_SHORT): _QUASI,
        (_QUASI, ReplicaEvent.CLOSED_WHOLE): _CLOSED,
        (_QUASI, ReplicaEvent.CLOSED_SHORT): _QUASI,
        (_CLOSED, ReplicaEvent.CLOSED_WHOLE): _CLOSED,
        (_CLOSED, ReplicaEvent.CLOSED_SHORT): _CLOSED,
        (_OPEN, ReplicaEvent.DAMAGE_FOUND): _UNHEALTHY,
        (_CLOSING, ReplicaEvent.DAMAGE_FOUND): _UNHEALTHY,
        (_QUASI, ReplicaEvent.DAMAGE_FOUND): _UNHEALTHY,
        (_CLOSED, ReplicaEvent.DAMAGE_FOUND): _UNHEALTHY,
        (_RECOVERING, ReplicaEvent.DAMAGE_FOUND): _UNHEALTHY,
        (_UNHEALTHY, ReplicaEvent.DAMAGE_FOUND): _UNHEALTHY,
        (_UNHEALTHY, ReplicaEvent.HEALED_CLOSED): _CLOSED,
        (_UNHEALTHY, ReplicaEvent.HEALED_QUASI_CLOSED): _QUASI,
        (_RECOVERING, ReplicaEvent.EXPIRED): _UNHEALTHY,
        (_OPEN, ReplicaEvent.DELETE_BEGAN): _DELETED,
        (_CLOSING, ReplicaEvent.DELETE_BEGAN): _DELETED,
        (_QUASI, ReplicaEvent.DELETE_BEGAN): _DELETED,
        (_CLOSED, ReplicaEvent.DELETE_BEGAN): _DELETED,
        (_UNHEALTHY, ReplicaEvent.DELETE_BEGAN): _DELETED,
        (_RECOVERING, ReplicaEvent.DELETE_BEGAN): _DELETED,
        (_DELETED, ReplicaEvent.DELETE_BEGAN): _DELETED,
    }
)

FORMER_STATE: Final[Mapping[ReplicaState, ReplicaState | None]] = MappingProxyType(
    {
        _OPEN: _QUASI,
        _CLOSING: _QUASI,
        _QUASI: _QUASI,
        _CLOSED: _CLOSED,
        _RECOVERING: None,
    }
)
"""State to which an UNHEALTHY replica may heal, by its state before the damage.

The value is None if the replica must stay UNHEALTHY.
"""

_HEALED: Final[Mapping[ReplicaState | None, ReplicaEvent]] = MappingProxyType(
    {_CLOSED: ReplicaEvent.HEALED_CLOSED, _QUASI: ReplicaEvent.HEALED_QUASI_CLOSED}
)


def next_state(state: ReplicaState, event: ReplicaEvent, container_id: ContainerId) -> ReplicaState:
    """Return the state of a replica after `event`.

    Raise `RefusedError(INVALID_CONTAINER_STATE)` if `NEXT` has no such transition.
    """
    following = NEXT.get((state, event))
    if following is None:
        raise RefusedError(
            Code.INVALID_CONTAINER_STATE,
            f"container {container_id} is {state}: {event} is not possible",
            container_id=container_id,
            state=state,
        )
    return following


def healing_event(former_state: ReplicaState | None) -> ReplicaEvent | None:
    """Return the event with which a full scan without findings ends the state UNHEALTHY.

    Return None if the replica must stay UNHEALTHY because of its former state.
    """
    return _HEALED.get(former_state)
