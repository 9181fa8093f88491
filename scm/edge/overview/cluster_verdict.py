"""What is to be said of the data in one line, and why. Pure.

"Whole" is said only where nothing is wrong and nothing is unknown: nobody silent, no report
missing, no container uncounted, no safe mode. What is wrong comes before what is not known.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent.observe.status_headline import Containers, doubts_about, in_trouble, unheard
from scm.cluster.safemode import Gate
from scm.edge.health_totals import Counts
from scm.edge.overview.datanode_totals import Sums
from scm.state.history.interval_samples import Verdict

REASONS_IN_LINE: Final = 3
RECOVER: Final = "suture scm recover"

_AS_LOST: Final = ("MISSING", "MISSING_UNDER_REPLICATED", "QUASI_CLOSED_STUCK_MISSING")
_AS_FEW: Final = (
    "UNDER_REPLICATED",
    "UNHEALTHY_UNDER_REPLICATED",
    "QUASI_CLOSED_STUCK_UNDER_REPLICATED",
)
_AS_DAMAGED: Final = ("UNHEALTHY", "UNHEALTHY_UNDER_REPLICATED", "UNHEALTHY_OVER_REPLICATED")
_AS_STUCK: Final = (
    "QUASI_CLOSED_STUCK",
    "QUASI_CLOSED_STUCK_UNDER_REPLICATED",
    "QUASI_CLOSED_STUCK_OVER_REPLICATED",
    "QUASI_CLOSED_STUCK_MISSING",
)


@dataclass(frozen=True, slots=True)
class Look:
    """What the verdict follows from, as of one moment."""

    now_ms: int
    gate: Gate
    sums: Sums  # of all nodes
    counts: Counts
    uncounted_count: int  # containers not counted since they changed
    conditions: Mapping[str, int]  # containers by health state, those that are not HEALTHY
    unlooked_count: int  # containers that the replication manager is behind with
    refused: tuple[str, ...] = ()  # lines about what datanodes say that was left out


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that is wrong or not known, and the command that tells more of it."""

    text: str
    is_wrong: bool
    command: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict, its line, and all reasons, what is wrong first."""

    verdict: Verdict
    text: str
    reasons: tuple[Reason, ...]


def judged(look: Look, troubles: Sequence[str] = ()) -> Judgement:
    """Judge the cluster; `troubles` are those of the process itself."""
    reasons = (
        *(Reason(text, is_wrong, command) for text, is_wrong, command in _wrong(look)),
        *(Reason(text, False) for text in in_trouble(troubles)),
        *(Reason(text, False, RECOVER) for text in in_trouble(strays(look.counts.stray))),
        *(Reason(text, False, command) for text, command in _not_known(look)),
    )
    if not reasons:
        return Judgement(Verdict.WHOLE, _whole(look), ())
    is_wrong = any(reason.is_wrong for reason in reasons)
    line = "; ".join(reason.text for reason in reasons[:REASONS_IN_LINE])
    more = len(reasons) - REASONS_IN_LINE
    begin = "Not whole" if is_wrong else "Not known"
    text = f"{begin}: {line}" + (f"; and {more} more" if more > 0 else "")
    return Judgement(Verdict.UNWELL if is_wrong else Verdict.UNKNOWN, text, reasons)


def strays(count: int) -> list[str]:
    """Return what is said where datanodes have containers that no person let go of, and that are
    not in the state: it was put back by hand, and keys of since are not found."""
    if not count:
        return []
    noun = "a container" if count == 1 else f"{count:,} containers"
    return [f"datanodes have {noun} that it does not know: its state may be an older one"]


def _whole(look: Look) -> str:
    closed = look.counts.all - look.counts.open
    nodes = _counted(look.sums.heard_count, "datanode")
    if not closed:
        return f"No closed container holds data yet; {nodes} heard"
    noun = "closed container is" if closed == 1 else "closed containers are"
    return f"All {closed:,} {noun} whole and equal on all replicas; {nodes} heard"


def _wrong(look: Look) -> Iterator[tuple[str, bool, str]]:
    """Yield what is wrong, or may be, of containers and volumes: text, whether it is, command."""
    counts = look.counts

    def in_state(names: Sequence[str]) -> int:
        return sum(look.conditions.get(name, 0) for name in names)

    known = Containers(
        lost=max(counts.lost, in_state(_AS_LOST)),
        contradict=counts.contradict,
        damaged=max(counts.unhealthy, in_state(_AS_DAMAGED)),
        differ=counts.differ,
        few=max(counts.few_replicas, in_state(_AS_FEW)),
    )
    for text in doubts_about(known):
        yield text, True, "suture scm report"
    stuck = in_state(_AS_STUCK)
    if stuck:
        yield f"{_counted(stuck, 'container')} stuck half-closed", True, "suture scm report"
    failed = look.sums.failed_volume_count
    if failed:
        yield f"{_counted(failed, 'volume')} failed", True, "suture status"
    if counts.unknown:
        (text,) = doubts_about(Containers(unknown=counts.unknown))
        yield text, False, "suture scm report"


def _not_known(look: Look) -> Iterator[tuple[str, str]]:
    """Yield what keeps anybody from saying that all is whole: text, command."""
    sums = look.sums
    if not look.gate.is_open:
        yield f"safe mode: {look.gate.reason}", "suture scm safemode"
    for text in look.refused:
        yield text, "journalctl --unit suture-scm --grep refused"
    if not sums.node_count:
        yield "no datanode has registered yet", "suture scm nodes"
    if sums.silent:
        yield unheard(sums.silent, sums.expected_count), "suture status"
    if sums.unreported:
        noun = "datanode has" if len(sums.unreported) == 1 else "datanodes have"
        text = f"{len(sums.unreported):,} {noun} not named all replicas since the start"
        yield text, "suture scm safemode"
    if look.uncounted_count:
        yield f"{_counted(look.uncounted_count, 'container')} not counted yet", "suture scm report"
    if look.unlooked_count:
        what = _counted(look.unlooked_count, "container")
        yield f"{what} changed and not looked at since", "suture scm report"
    unhealthy = look.conditions.get("OPEN_UNHEALTHY", 0)
    if unhealthy:
        yield f"{_counted(unhealthy, 'open container')} to be closed", "suture scm report"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
