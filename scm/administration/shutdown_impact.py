"""Predicts whether datanodes or volumes may be stopped, or may be lost permanently.

The containers are evaluated page by page, with the rules of `health/`. If the health of a datanode
changes during the evaluation, the evaluation starts again. If the health keeps changing, the answer
is UNKNOWN.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from health.segmented_rows import Ints
from scm.administration.container_pages import ContainerPages
from scm.administration.impact_analysis import ImpactTotals, StopAnswer, StopTargets
from scm.cluster.decision_context import ControlComponent
from scm.cluster.safemode import SafeMode
from scm.state.entities import Container, NodeHealthState, OpState
from suture.errors import Code, RefusedError, size_text

TRIES: Final = 3
NEVER_DEAD: Final = frozenset({OpState.IN_MAINTENANCE, OpState.ENTERING_MAINTENANCE})
"""Operational states in which the SCM expects a datanode without heartbeats to return."""

Stamp = tuple[tuple[str, str, str, bool], ...]


@dataclass(frozen=True, slots=True)
class StopQuery:
    """A question about the effect of stopping datanodes and volumes.

    Each volume is a pair of a datanode id and a volume id. `is_for_good` is True if the datanodes
    and volumes would never return. At least `keep_count` copies of each container must remain
    readable.
    """

    datanode_ids: tuple[str, ...]
    volumes: tuple[tuple[str, str], ...] = ()
    is_for_good: bool = False
    keep_count: int = 1


@dataclass(frozen=True, slots=True)
class StopImpact:
    """The answer to a StopQuery, and the facts on which the answer is based."""

    answer: StopAnswer
    reasons: tuple[str, ...]
    outlook: ImpactTotals
    open_count: int
    """Number of open containers on the targets."""
    writer_count: int
    """Number of clients that write the open containers on the targets."""
    wait_ms: int
    """Time in ms before copies of missing replicas begin, because a silent datanode may return."""
    rebuild_ms: int
    """Time in ms to copy the missing replicas at the recent rate.

    Each remaining datanode is assumed to make one copy at a time.
    """
    stays_count: int
    """Number of remaining datanodes that accept new replicas."""
    free_bytes: int
    has_room: bool


@dataclass(frozen=True, slots=True)
class _Begun:
    targets: StopTargets
    container_ids: Ints
    stamp: Stamp
    reasons: tuple[str, ...]


@dataclass(eq=False)
class StopImpactAnalyzer(ControlComponent):
    """Predicts the effect of stopping datanodes or volumes. Changes nothing.

    The methods acquire the control plane's lock themselves.
    """

    _pages: ContainerPages
    _safe_mode: SafeMode

    def analyze(self, question: StopQuery) -> StopImpact:
        """Return the effect of stopping the datanodes and volumes of `question`.

        Raise RefusedError(WRONG_DATANODE) if a datanode or a volume is unknown.
        """
        for tries_left in reversed(range(TRIES)):
            found, is_same = self._looked(question)
            if is_same or not tries_left:
                return found
        raise AssertionError("it is tried at least once")

    def _looked(self, question: StopQuery) -> tuple[StopImpact, bool]:
        """Evaluate `question` once, and return the effect.

        The second value is True if the health and operational state of all datanodes stayed the
        same during the evaluation.
        """
        with self.access.lock:
            begun = self._begin(question)
        outlook = ImpactTotals()
        for page in self._pages.of(begun.container_ids):
            outlook.add(page.batch, page.rules, begun.targets)
        with self.access.lock:
            is_same = self._stamp() == begun.stamp
            return self._foreseen(question, begun, outlook, is_same=is_same), is_same

    def _begin(self, question: StopQuery) -> _Begun:
        for name in (*question.datanode_ids, *(name for name, _ in question.volumes)):
            if self._state.nodes.get(name) is None:
                raise RefusedError(
                    Code.WRONG_DATANODE, f"no datanode {name} has ever registered", datanode_id=name
                )
        reasons = [] if not self._safe_mode.is_on else ["the control plane is in safe mode"]
        off = frozenset(question.datanode_ids)
        parts: dict[str, Ints] = {}
        for name in dict.fromkeys(name for name, _ in question.volumes if name not in off):
            wanted = [volume for node, volume in question.volumes if node == name]
            parts[name], unplaced_count = self._on_volumes(name, wanted)
            if unplaced_count:
                reasons.append(f"{name} does not say on which volume {unplaced_count} replicas are")
        for name in (*off, *parts):
            if self._nodes.health(name) is not NodeHealthState.DEAD and not self._is_confirmed(
                name
            ):
                reasons.append(f"{name} has not reported all replicas since the start")
        held = [self._state.replicas.ids_on(name) for name in off]
        ids = np.unique(np.concatenate([*held, *parts.values(), np.zeros(0, np.int64)]))
        targets = StopTargets(off, parts, question.is_for_good, question.keep_count)
        return _Begun(targets, ids.astype(np.int64), self._stamp(), tuple(reasons))

    def _on_volumes(self, datanode_id: str, volume_ids: Collection[str]) -> tuple[Ints, int]:
        """Return the ids of the containers on these volumes of a datanode.

        The second value is the number of replicas of the datanode whose volume is unknown. Raise
        RefusedError(WRONG_DATANODE) if a volume is unknown.
        """
        rows = self._state.replicas.of_node(
            datanode_id, np.sort(self._state.replicas.ids_on(datanode_id))
        )
        words = self._state.replicas.words(rows["volume"].tolist())
        there = np.array([word in volume_ids for word in words], dtype=np.bool_)
        live = self._nodes.liveness(datanode_id)
        known = {volume.volume_id for volume in live.volumes} if live is not None else set()
        missing = sorted(set(volume_ids) - known - set(words))
        if missing:
            raise RefusedError(
                Code.WRONG_DATANODE,
                f"datanode {datanode_id} has no volume {', '.join(missing)}",
                hint="suture volumes lists all volumes",
            )
        return rows["container_id"][there].astype(np.int64), words.count("")

    def _is_confirmed(self, datanode_id: str) -> bool:
        return self._cases.is_confirmed(datanode_id)

    def _stamp(self) -> Stamp:
        """Return the health and the operational state of all datanodes.

        The caller compares two results to detect a change during the evaluation.
        """
        return tuple(
            (
                node.datanode_id,
                self._nodes.health(node.datanode_id),
                node.op_state,
                self._is_confirmed(node.datanode_id),
            )
            for node in self._state.nodes.values()
        )

    def _foreseen(
        self, question: StopQuery, begun: _Begun, outlook: ImpactTotals, *, is_same: bool
    ) -> StopImpact:
        reasons = list(begun.reasons)
        if not is_same:
            reasons.append("datanodes came and went while they were looked at")
        stays = [
            candidate
            for candidate in self._cases.candidates()
            if candidate.datanode_id not in begun.targets.nodes
        ]
        free_bytes = sum(max(0, c.available_bytes - c.scheduled_bytes) for c in stays)
        lanes = max(1, min(len(stays), outlook.missing_replica_count))
        opened = self._opened(outlook.open_ids, question.datanode_ids)
        answer, told = _answer(outlook, reasons, question.keep_count)
        room = _without_room(outlook, len(stays), free_bytes)
        return StopImpact(
            answer,
            tuple(told + room),
            outlook,
            len(opened),
            len({container.client_id for container in opened} - {""}),
            self._wait_ms(begun.targets) if outlook.missing_replica_count else 0,
            self._commands.copy_rate.estimate_ms(outlook.rebuild_bytes) // lanes,
            len(stays),
            free_bytes,
            not room,
        )

    def _opened(self, ids: Collection[int], datanode_ids: Sequence[str]) -> list[Container]:
        """Return the open containers with a replica on a target, or a target in their pipeline."""
        there, wanted = set(ids), set(datanode_ids)
        return [
            container
            for container in self._state.containers.open_all()
            if container.container_id in there or wanted.intersection(container.pipeline)
        ]

    def _wait_ms(self, targets: StopTargets) -> int:
        waited = [
            name
            for name in targets.nodes
            if self._nodes.health(name) is not NodeHealthState.DEAD
            and (targets.is_for_good or self._op_state(name) not in NEVER_DEAD)
        ]
        return self._options.dead_after_ms if waited else 0

    def _op_state(self, datanode_id: str) -> OpState:
        node = self._state.nodes.get(datanode_id)
        return OpState.IN_SERVICE if node is None else node.op_state


def _answer(
    outlook: ImpactTotals, reasons: Sequence[str], keep_count: int
) -> tuple[StopAnswer, list[str]]:
    """Return the answer to the question whether datanodes may be stopped, and the reasons for it.

    `reasons` lists missing facts, for instance a datanode that has not reported its replicas. If
    any fact is missing, the answer is UNKNOWN, even if the totals in `outlook` alone would result
    in NO.
    """
    if reasons:
        return StopAnswer.UNKNOWN, list(reasons)
    if outlook.unreadable_count:
        return StopAnswer.NO, [f"{outlook.unreadable_count} containers could not be read"]
    if outlook.few_count:
        why = f"{outlook.few_count} containers would have fewer than {keep_count} copies"
        return StopAnswer.NO, [why]
    if outlook.doubtful_count:
        return StopAnswer.UNKNOWN, [
            f"{outlook.doubtful_count} containers depend on datanodes that are silent, on reports "
            "that are missing, or on replicas that are damaged or differ"
        ]
    return StopAnswer.YES, []


def _without_room(outlook: ImpactTotals, stays_count: int, free_bytes: int) -> list[str]:
    """Return the reasons why the remaining datanodes cannot store the missing replicas."""
    found = []
    if outlook.missing_replica_count and outlook.width_max > stays_count:
        found.append(
            f"{outlook.width_max} datanodes are needed to have all replicas again, "
            f"{stays_count} would take any"
        )
    if outlook.rebuild_bytes > free_bytes:
        found.append(
            f"{size_text(outlook.rebuild_bytes)} would have to be made again, "
            f"{size_text(free_bytes)} are free"
        )
    return found
