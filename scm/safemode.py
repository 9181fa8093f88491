"""The start: nothing is decided, copied or deleted before the cluster is known again.

After a restart the replica map is what was true when the control plane stopped. Acting on it
would copy what is there and delete what is the last; so the nodes that were online then must have
connected, and named all their replicas, once (they need not stay: S5.16, S5.17). A node that was
dead or in maintenance is not waited for. If not all come, a quorum is enough after a while; with
less than that, only a person opens the gate.
"""

from collections.abc import Collection
from dataclasses import dataclass

from scm.clock import Clock
from scm.facts import OpState
from scm.options import ScmOptions
from scm.state import State


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether decisions may be made, and what is waited for."""

    is_open: bool
    reason: str
    missing: tuple[str, ...] = ()


def gate(
    expected: Collection[str],
    seen: Collection[str],
    *,
    waited_s: float,
    wait_s: float,
    quorum_percent: int,
) -> Gate:
    """Judge the start by the nodes that were online before it and those that have reported."""
    missing = tuple(sorted(set(expected) - set(seen)))
    there = len(expected) - len(missing)
    if not missing:
        return Gate(True, f"all {len(expected)} nodes that were online have reported")
    share = f"{there} of {len(expected)} nodes that were online have reported"
    if there * 100 < len(expected) * quorum_percent:
        return Gate(False, f"{share}, {quorum_percent} % must", missing)
    if waited_s < wait_s:
        return Gate(False, f"{share}; {wait_s - waited_s:.0f} s more for the others", missing)
    return Gate(True, f"{share}, and the others had their time", missing)


class SafeMode:
    """The gate of this process; once open it stays open. Callers hold the control plane's lock."""

    def __init__(self, state: State, clock: Clock, options: ScmOptions) -> None:
        self._clock = clock
        self._options = options
        self._started_at_s = clock.monotonic_s()
        self._expected = frozenset(
            node.datanode_id
            for node in state.nodes.values()
            if node.was_online and node.op_state is not OpState.IN_MAINTENANCE
        )
        self._seen: set[str] = set()
        self._gate = Gate(False, "just started")

    @property
    def is_on(self) -> bool:
        """Whether the gate is still closed."""
        return not self._gate.is_open

    def look(self, confirmed: Collection[str]) -> Gate:
        """Judge again, unless it is open; `confirmed` have named all their replicas."""
        if not self._gate.is_open:
            self._seen |= self._expected.intersection(confirmed)
            self._gate = gate(
                self._expected,
                self._seen,
                waited_s=self._clock.monotonic_s() - self._started_at_s,
                wait_s=self._options.safemode_wait_ms / 1000,
                quorum_percent=self._options.safemode_quorum_percent,
            )
        return self._gate

    def leave(self) -> Gate:
        """Open the gate because a person says so."""
        if not self._gate.is_open:
            self._gate = Gate(True, "opened by an operator", self._gate.missing)
        return self._gate
