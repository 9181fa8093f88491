"""The start: nothing is decided, copied or deleted before the cluster is known again.

    hot restart   the replica map is read back; whoever was online is waited for
    cold start    the replica map is forgotten, and made again from reports; all are waited for
    restored      the same, and what was written since the backup is brought back first

After a hot restart the replica map is what was true when the control plane stopped. Acting on it
would copy what is there and delete what is the last; so the nodes that were online then must have
connected, and named all their replicas, once (they need not stay). A node that was dead or in
maintenance is not waited for; one that was dead and comes back counts like the others, or three
nodes of four would be too few where the fourth was away for a moment. After a cold start, which an
operator asks for, every node that may be up is waited for, and longer. If not all come, a quorum is
enough after a while; with less than that, only a person opens the gate.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from agent.errors import Code, Refused
from scm.state.clock import Clock
from scm.state.database import State
from scm.state.facts import OpState
from scm.state.options import ScmOptions
from scm.state.single_values import Restored

_OFF: Final = frozenset({OpState.IN_MAINTENANCE, OpState.DECOMMISSIONED})
"""States in which a node may be switched off."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether decisions may be made, and what is waited for."""

    is_open: bool
    reason: str
    missing: tuple[str, ...] = ()
    is_cold: bool = False
    expected_count: int = 0
    left_s: float = 0.0  # until a quorum will do


def gate(
    expected: Collection[str],
    seen: Collection[str],
    *,
    waited_s: float,
    wait_s: float,
    quorum_percent: int,
    is_cold: bool = False,
) -> Gate:
    """Judge the start by the nodes that are expected and those that have reported.

    Expected are those that were online before it; at a cold start those that are known. Is nobody
    known then, the whole time is waited for whoever comes. Of those that were not expected each
    that has reported is one more of the quorum.
    """
    missing = tuple(sorted(set(expected) - set(seen)))
    count, there = len(expected), len(expected) - len(missing)
    extra_count = len(set(seen) - set(expected))
    left_s = max(0.0, wait_s - waited_s)
    which = "known nodes" if is_cold else "nodes that were online"

    def answer(is_open: bool, reason: str) -> Gate:
        return Gate(is_open, reason, missing, is_cold, count, 0.0 if is_open else left_s)

    if is_cold and not count and left_s:
        return answer(False, f"no node is known; {left_s:.0f} s more for those that come")
    if not missing:
        return answer(True, f"all {count} {which} have reported")
    share = f"{there} of {count} {which} have reported"
    if extra_count and count:
        share += f", and {extra_count} more"
    if (there + extra_count) * 100 < (count + extra_count) * quorum_percent:
        return answer(False, f"{share}, {quorum_percent} % must")
    if left_s:
        return answer(False, f"{share}; {left_s:.0f} s more for the others")
    return answer(True, f"{share}, and the others had their time")


class SafeMode:
    """The gate of this process; once open it stays open. Callers hold the control plane's lock."""

    def __init__(self, state: State, clock: Clock, options: ScmOptions) -> None:
        self._clock = clock
        self._is_cold = state.is_cold
        wait_ms = options.cold_start_wait_ms if state.is_cold else options.safemode_wait_ms
        self._wait_s = wait_ms / 1000
        self._quorum_percent = options.safemode_quorum_percent
        self._started_at_s = clock.monotonic_s()
        self._expected = frozenset(
            node.datanode_id
            for node in state.nodes.values()
            if node.op_state not in _OFF and (node.was_online or state.is_cold)
        )
        self._counted = frozenset(
            node.datanode_id for node in state.nodes.values() if node.op_state not in _OFF
        )
        self._seen: set[str] = set()
        self._state = state
        self._gate = Gate(False, "just started")

    @property
    def is_on(self) -> bool:
        """Whether the gate is still closed."""
        return not self._gate.is_open

    def look(self, confirmed: Collection[str]) -> Gate:
        """Judge again, unless it is open; `confirmed` have named all their replicas."""
        if not self._gate.is_open:
            self._seen |= self._counted.intersection(confirmed)
            self._gate = gate(
                self._expected,
                self._seen,
                waited_s=self._clock.monotonic_s() - self._started_at_s,
                wait_s=self._wait_s,
                quorum_percent=self._quorum_percent,
                is_cold=self._is_cold,
            )
            restored = self._state.restored
            if self._gate.is_open and restored is not None:
                reason = f"{self._gate.reason}; {_to_recover(restored)}"
                self._gate = replace(self._gate, is_open=False, reason=reason)
        return self._gate

    def leave(self) -> Gate:
        """Open the gate because a person says so. Raises Refused while a restore is unfinished."""
        restored = self._state.restored
        if restored is not None:
            raise Refused(
                Code.SAFE_MODE,
                f"safe mode cannot be left: {_to_recover(restored)}",
                hint="suture scm recover",
            )
        if not self._gate.is_open:
            self._gate = replace(self._gate, is_open=True, reason="opened by an operator", left_s=0)
        return self._gate


def _to_recover(restored: Restored) -> str:
    """Say of which moment the state is, and that it must be recovered."""
    taken = datetime.fromtimestamp(restored.taken_at_ms / 1000, UTC).isoformat(timespec="seconds")
    return f"this is a backup of {taken}: suture scm recover brings back what was stored since"
