"""Counts and rates of the commands that datanodes have carried out.

The counts are kept in memory only. After a start of the control plane, the rates are unknown until
the first commands have ended.
"""

from collections import Counter, deque
from dataclasses import dataclass
from typing import Final

from scm.state.entities import CommandKind, CommandOutcome, OutcomeState, PendingCommand
from suture.wire.v1 import scm_pb2

SPAN_S: Final = 600.0  # rates are those of the last ten minutes
PORTION_S: Final = 10.0
COUNTED: Final = frozenset(
    {CommandKind.REPLICATE, CommandKind.RECONSTRUCT, CommandKind.RECONCILE, CommandKind.DELETE}
)
"""Kinds of commands that repair or remove replicas. Only these kinds are included in `sums()`."""


@dataclass(slots=True)
class CompletedWork:
    """Commands that ended in one interval of PORTION_S seconds, by kind."""

    since_s: float
    done: Counter[str]
    moved_bytes: Counter[str]
    failed: Counter[str]


@dataclass(frozen=True, slots=True)
class CompletionRate:
    """Commands of one kind that ended in the last `span_s` seconds."""

    done_count: int = 0
    failed_count: int = 0
    moved_bytes: int = 0
    span_s: float = 0.0

    def bytes_per_s(self) -> float:
        """Return the number of bytes moved per second."""
        return self.moved_bytes / self.span_s if self.span_s else 0.0

    def left_s(self, count: int) -> float | None:
        """Return the estimated time in seconds for `count` more commands at this rate.

        Return None if the rate is unknown.
        """
        if not count:
            return 0.0
        return count * self.span_s / self.done_count if self.done_count and self.span_s else None


class CommandProgress:
    """Counts the outcomes of commands by kind. Callers must hold the control plane's lock."""

    def __init__(self, now_s: float) -> None:
        self._started_at_s = now_s
        self._portions: deque[CompletedWork] = deque()
        self.done: Counter[tuple[str, str]] = Counter()
        """Number of ended commands since the start, by kind and result."""
        self.moved_bytes: Counter[str] = Counter()
        """Number of bytes moved since the start, by kind of command."""

    def record_outcome(self, outcome: CommandOutcome, now_s: float) -> None:
        """Count the outcome of one command."""
        portion = self._portion(now_s)
        self.done[outcome.kind, outcome.state] += 1
        if outcome.state is OutcomeState.FAILED:
            portion.failed[outcome.kind] += 1
        elif outcome.state is OutcomeState.EXECUTED:
            moved = bytes_of(outcome)
            portion.done[outcome.kind] += 1
            portion.moved_bytes[outcome.kind] += moved
            self.moved_bytes[outcome.kind] += moved

    def rate(self, kind: CommandKind, now_s: float) -> CompletionRate:
        """Return the commands of one kind that ended in the last ten minutes."""
        self._forget(now_s)
        return CompletionRate(
            sum(portion.done[kind] for portion in self._portions),
            sum(portion.failed[kind] for portion in self._portions),
            sum(portion.moved_bytes[kind] for portion in self._portions),
            min(SPAN_S, max(PORTION_S, now_s - self._started_at_s)),
        )

    def sums(self) -> tuple[int, int, int]:
        """Return the numbers of executed commands, failed commands and moved bytes since the start.

        The first two numbers include only the kinds of commands in `COUNTED`.
        """
        done, failed = (
            sum(count for (kind, state), count in self.done.items()
                if state == wanted and kind in COUNTED)
            for wanted in (OutcomeState.EXECUTED, OutcomeState.FAILED)
        )  # fmt: skip
        return done, failed, sum(self.moved_bytes.values())

    def _portion(self, now_s: float) -> CompletedWork:
        self._forget(now_s)
        if not self._portions or now_s - self._portions[-1].since_s >= PORTION_S:
            self._portions.append(CompletedWork(now_s, Counter(), Counter(), Counter()))
        return self._portions[-1]

    def _forget(self, now_s: float) -> None:
        while self._portions and now_s - self._portions[0].since_s > SPAN_S:
            self._portions.popleft()


def is_news(pending: PendingCommand | None, outcome: CommandOutcome) -> bool:
    """Return True if this outcome is the first answer of the datanode to this command.

    `pending` is None if the control plane has no such command.
    """
    return (
        pending is not None
        and not pending.is_answered
        and pending.datanode_id == outcome.datanode_id
        and pending.kind == outcome.kind
    )


def bytes_of(outcome: CommandOutcome) -> int:
    """Return the number of bytes that a command moved, as the datanode reported it."""
    match outcome.kind:
        case CommandKind.RECONSTRUCT:
            return scm_pb2.ReconstructOutcome.FromString(outcome.detail).bytes_written
        case CommandKind.RECONCILE:
            return scm_pb2.ReconcileOutcome.FromString(outcome.detail).bytes_fetched
        case _:
            return outcome.moved_bytes
