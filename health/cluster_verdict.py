"""Summarizes the state of all data in a cluster as one word, with reasons. No I/O.

Every program that reports on a complete cluster uses `judge_cluster`: `suture status`, `suture scm
report` and their exit codes, the web page, the history, and the metric `suture_scm_verdict`.

The result is WHOLE if there is no problem and no unknown fact: every datanode answers and has
reported its replicas, every container was counted, and the control plane is not in safe mode. The
reasons list problems before unknown facts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from health.words import HealthState

REASONS_IN_LINE: Final = 3
NAMES_SHOWN_MAX: Final = 3
NAME_CHARACTERS: Final = 8  # of a datanode's id; enough to distinguish datanodes
LACKING: Final = "without blocks that keys need"
RECOVER: Final = "suture scm recover"
_REPORT: Final = "suture scm report"
_SAFE_MODE: Final = "suture scm safemode"
_REFUSED: Final = "journalctl --unit suture-scm --grep 'rejected|later_state|state_older'"


class DataVerdict(StrEnum):
    """The state of all data in the cluster, as one word."""

    WHOLE = "WHOLE"
    UNKNOWN = "UNKNOWN"  # no problem is known, but not everything is known
    DEGRADED = "DEGRADED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerProblems:
    """The number of closed containers with each problem. A container may be counted for several
    problems."""

    lost: int = 0  # no whole replica is known
    missing_blocks: int = 0  # no replica can have all blocks that keys need
    contradict: int = 0  # replicas contradict each other, each by intact rows
    damaged: int = 0
    differ: int = 0
    few: int = 0
    misplaced: int = 0  # all replicas exist, but on fewer racks than required
    stuck: int = 0
    unknown: int = 0  # not compared


_AS: Final[Mapping[HealthState, tuple[str, ...]]] = {
    HealthState.HEALTHY: (),
    HealthState.UNDER_REPLICATED: ("few",),
    HealthState.MIS_REPLICATED: ("misplaced",),
    HealthState.OVER_REPLICATED: (),  # a surplus replica endangers no byte
    HealthState.MISSING: ("lost",),
    HealthState.UNHEALTHY: ("damaged",),
    HealthState.EMPTY: (),  # all its blocks are deleted
    HealthState.OPEN_UNHEALTHY: (),  # not known: `_OPEN`
    HealthState.QUASI_CLOSED_STUCK: ("stuck",),
    HealthState.OPEN_WITHOUT_PIPELINE: (),  # not known: `_OPEN`
    HealthState.UNHEALTHY_UNDER_REPLICATED: ("damaged", "few"),
    HealthState.UNHEALTHY_OVER_REPLICATED: ("damaged",),
    HealthState.MISSING_UNDER_REPLICATED: ("lost",),
    HealthState.QUASI_CLOSED_STUCK_UNDER_REPLICATED: ("stuck", "few"),
    HealthState.QUASI_CLOSED_STUCK_OVER_REPLICATED: ("stuck",),
    HealthState.QUASI_CLOSED_STUCK_MISSING: ("stuck", "lost"),
}
"""For each health state, the fields of `ContainerProblems` that count a container in this state."""
_OPEN: Final = (HealthState.OPEN_UNHEALTHY, HealthState.OPEN_WITHOUT_PIPELINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The facts from which the state of a cluster is computed, at one instant."""

    containers: ContainerProblems = ContainerProblems()  # as counted from replicas that are present
    conditions: Mapping[str, int] = field(default_factory=dict)  # by health state, not HEALTHY
    closed_count: int = 0
    stray_count: int = 0  # on datanodes, but neither known to the SCM nor forgotten by order
    uncounted_count: int = 0  # containers that have changed since they were last counted
    unlooked_count: int = 0  # containers that the replication manager has yet to check
    node_count: int = 0
    heard_count: int = 0
    silent: Sequence[str] = ()  # ids of silent datanodes whose replicas count
    unreported_count: int = 0  # datanodes that have not reported all replicas since the start
    failed_volume_count: int = 0
    safe_mode: str = ""  # reason of safe mode; empty = no safe mode
    refused: Sequence[str] = ()  # lines about invalid parts of datanodes' reports
    troubles: Sequence[str] = ()  # problems of the control plane itself


@dataclass(frozen=True, slots=True)
class VerdictReason:
    """A problem or an unknown fact, and the command for details."""

    text: str
    is_wrong: bool
    command: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The state of a cluster, a summary in one line, and all reasons, with problems before unknown
    facts."""

    verdict: DataVerdict
    text: str
    reasons: tuple[VerdictReason, ...]


def judge_cluster(facts: ClusterFacts) -> Judgement:
    """Return the state of a cluster, with a summary and the reasons."""
    reasons = (
        *_wrong(facts),
        *(VerdictReason(text, False) for text in in_trouble(facts.troubles)),
        *_not_known(facts),
    )
    if not reasons:
        return Judgement(DataVerdict.WHOLE, _whole(facts), ())
    is_wrong = any(reason.is_wrong for reason in reasons)
    line = "; ".join(reason.text for reason in reasons[:REASONS_IN_LINE])
    more = len(reasons) - REASONS_IN_LINE
    begin = "Degraded" if is_wrong else "Unknown"
    text = f"{begin}: {line}" + (f"; and {more} more" if more > 0 else "")
    return Judgement(DataVerdict.DEGRADED if is_wrong else DataVerdict.UNKNOWN, text, reasons)


def problem_texts(containers: ContainerProblems) -> list[str]:
    """Return a text for each problem that at least one container has, the worst problem first."""
    words = (
        (containers.lost, "without a whole replica"),
        (containers.missing_blocks, LACKING),
        (containers.contradict, "whose replicas contradict each other"),
        (containers.damaged, "with damaged replicas"),
        (containers.differ, "whose replicas differ"),
        (containers.few, "with too few replicas"),
        (containers.misplaced, "on too few racks"),
        (containers.stuck, "stuck in QUASI_CLOSED"),
        (containers.unknown, "not compared yet"),
    )
    return [f"{_counted(count, 'container')} {text}" for count, text in words if count]


def in_trouble(troubles: Sequence[str]) -> list[str]:
    """Return the texts about problems of the control plane, each prefixed with "the control plane:
    "."""
    return [f"the control plane: {text}" for text in troubles]


def unheard(silent: Sequence[str], asked_count: int) -> str:
    """Return a text about the datanodes in `silent`, which do not answer. The text names the first
    of them."""
    names = [one[:NAME_CHARACTERS] for one in silent[:NAMES_SHOWN_MAX]]
    more = ["..."] if len(silent) > NAMES_SHOWN_MAX else []
    verb = "datanode does" if asked_count == 1 else "datanodes do"
    return f"{len(silent)} of {asked_count} {verb} not answer ({', '.join(names + more)})"


def _whole(facts: ClusterFacts) -> str:
    nodes = _counted(facts.heard_count, "datanode")
    nodes += " answers" if facts.heard_count == 1 else " answer"
    if not facts.closed_count:
        return f"No closed container holds data yet; {nodes}"
    noun = "closed container is" if facts.closed_count == 1 else "closed containers are"
    return f"All {facts.closed_count:,} {noun} whole and equal on all replicas; {nodes}"


def _wrong(facts: ClusterFacts) -> Iterator[VerdictReason]:
    """Yield the problems of containers and of volumes, then the number of containers whose replicas
    have not been compared."""
    counted, judged = facts.containers, dict.fromkeys(ContainerProblems.__dataclass_fields__, 0)
    for name, count in facts.conditions.items():
        for word in _AS[HealthState[name]]:
            judged[word] += count
    known = ContainerProblems(
        lost=max(counted.lost, judged["lost"]),
        missing_blocks=counted.missing_blocks,
        contradict=counted.contradict,
        damaged=max(counted.damaged, judged["damaged"]),
        differ=counted.differ,
        few=max(counted.few, judged["few"]),
        misplaced=judged["misplaced"],
        stuck=judged["stuck"],
    )
    for text in problem_texts(known):
        yield VerdictReason(text, True, RECOVER if text.endswith(LACKING) else _REPORT)
    if facts.failed_volume_count:
        failed = _counted(facts.failed_volume_count, "volume")
        yield VerdictReason(f"{failed} failed", True, "suture status")
    for text in problem_texts(ContainerProblems(unknown=counted.unknown)):
        yield VerdictReason(text, False, _REPORT)


def _not_known(facts: ClusterFacts) -> Iterator[VerdictReason]:
    """Yield the unknown facts that prevent the state WHOLE."""

    def reason(text: str, command: str) -> VerdictReason:
        return VerdictReason(text, False, command)

    if facts.stray_count:
        noun = "a container" if facts.stray_count == 1 else f"{facts.stray_count:,} containers"
        text = f"datanodes have {noun} that it does not know: its state may be an older one"
        yield reason(in_trouble([text])[0], RECOVER)
    if facts.safe_mode:
        yield reason(f"safe mode: {facts.safe_mode}", _SAFE_MODE)
    for text in facts.refused:
        yield reason(text, _REFUSED)
    if not facts.node_count:
        yield reason("no datanode has registered yet", "suture scm nodes")
    if facts.silent:
        asked_count = facts.heard_count + len(facts.silent)
        yield reason(unheard(facts.silent, asked_count), "suture status")
    if facts.unreported_count:
        noun = "datanode has" if facts.unreported_count == 1 else "datanodes have"
        text = f"{facts.unreported_count:,} {noun} not reported all replicas since the start"
        yield reason(text, _SAFE_MODE)
    if facts.uncounted_count:
        yield reason(f"{_counted(facts.uncounted_count, 'container')} not counted yet", _REPORT)
    if facts.unlooked_count:
        what = _counted(facts.unlooked_count, "container")
        yield reason(f"{what} changed since the last check", _REPORT)
    unhealthy = sum(facts.conditions.get(state.name, 0) for state in _OPEN)
    if unhealthy:
        yield reason(f"{_counted(unhealthy, 'open container')} to be closed", _REPORT)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
