"""Reference implementation of container health in plain Python. The Spark job must give the same
results.

It implements the rules as a chain of handlers over lists, one container at a time. It shares only
the names of states and flags with `spark_verify`. It is intentionally slow and simple.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from tests.support.verification.compared_roots import compare
from tests.support.verification.container_case import TREE, Case
from tests.support.verification.snapshots import ReplicaRow


@dataclass(frozen=True)
class Opinion:
    """The reference's result for one container."""

    checksum_class: str
    eligibility: str
    minority: frozenset[str]
    state: str
    queue: str
    stuck: bool
    flags: frozenset[str]


def classify(case: Case) -> Opinion:
    """Return the reference's result for one container."""
    word, minority, tombstones, silent, differ = compare(case)
    state, queue, stuck = chain(case)
    flags = conditions(case, stuck)
    found = {
        "CONTRADICTORY": word == "CONTRADICTORY",
        "ROOTS_DIFFER": word.startswith("MISMATCH") or (word == "CONTRADICTORY" and differ),
        "TOMBSTONES_DIFFER": tombstones,
        "UNREACHABLE_DIFFERS": silent,
    }
    if not case.box.suppressed:
        flags |= {name for name, applies in found.items() if applies}
    return Opinion(word, eligibility(case), minority, state, queue, stuck, frozenset(flags))


def eligibility(case: Case) -> str:
    """Return the result code of a request to reconcile a container. The last reports of dead nodes
    are ignored."""
    here = [r for r in case.replicas if case.nodes[r.datanode_id].health != "DEAD"]
    answering = [r for r in case.replicas if r.state in TREE and case.up(r)]
    rules = [
        (case.box.state not in {"CLOSED", "QUASI_CLOSED"}, "INELIGIBLE_CONTAINER_STATE"),
        (not here, "NO_REPLICAS_FOUND"),
        (all(r.state not in TREE for r in here), "INELIGIBLE_REPLICA_STATES"),
        (case.box.replication_type != "RATIS", "INELIGIBLE_REPLICATION_TYPE"),
        (case.box.replication_factor <= 1, "NOT_ENOUGH_REQUIRED_NODES"),
        (len(answering) < 2, "NOT_ENOUGH_REACHABLE_REPLICAS"),
        (any(o.op == "RECONCILE" for o in case.ops), "RECONCILE_PENDING"),
    ]
    return next((code for applies, code in rules if applies), "OK")


def chain(case: Case) -> tuple[str, str, bool]:
    """Run the handlers in order; return the resulting state, the queue, and whether it is stuck."""
    box, here = case.box, case.present
    if box.suppressed:
        return "HEALTHY", "-", False
    if box.state == "OPEN":
        if not box.pipeline_alive:
            return "OPEN_WITHOUT_PIPELINE", "-", False
        odd = any(r.state != "OPEN" for r in here)
        return ("OPEN_UNHEALTHY" if odd else "HEALTHY"), "-", False
    if box.state == "CLOSING":
        return ("HEALTHY" if here else "MISSING"), "-", False
    quasi = box.state == "QUASI_CLOSED" and box.replication_type != "EC"
    stuck = quasi and not closable(case)
    if empty(case):
        return "EMPTY", "-", stuck
    if box.state in {"DELETING", "DELETED", "RECOVERING"}:
        return "HEALTHY", "-", False
    if box.replication_type == "EC":
        return *ec_chain(case), False
    return *ratis_chain(case, stuck), stuck


def closable(case: Case) -> bool:
    """Return True if a quasi-closed container can be closed: most origins have a closed or
    UNHEALTHY replica, and no other replica has more commits than the closed ones."""
    ended = {"QUASI_CLOSED", "CLOSED"}
    closed = [r for r in case.present if r.state in ended and not r.load_error]
    others = [r for r in case.present if r not in closed]
    top = max(map(_bcsid, closed), default=-1)
    needed = max(0, *map(_bcsid, others), case.box.acknowledged_bcsid or 0)
    sick = [r for r in others if r.state == "UNHEALTHY" and not r.load_error]
    origins = {case.origin(r) for r in closed + sick}
    return top >= needed and 2 * len(origins) > case.box.replication_factor


def in_stuck_set(case: Case) -> bool:
    """Return True if the rules for stuck quasi-closed containers apply, which count the replicas
    per origin."""
    everyone = {case.origin(r) for r in case.present}
    writers = {case.origin(r) for r in case.present if r.state in {"QUASI_CLOSED", "OPEN"}}
    return (
        case.box.state == "QUASI_CLOSED"
        and not closable(case)
        and len(everyone) != 1
        and len(writers) < case.box.replication_factor
    )


def empty(case: Case) -> bool:
    """Return True if the container has no data and no keys left."""
    here, state = case.present, case.box.state
    if state == "CLOSED" and not here:
        return case.box.key_count == 0
    if state == "CLOSED":
        return all(r.is_empty and r.state == "CLOSED" for r in here)
    return state == "QUASI_CLOSED" and bool(here) and all(r.is_empty for r in here)


def origin_needs(case: Case) -> tuple[int, int]:
    """Return the missing copies and the surplus copies over all origins of a stuck container."""
    top = max((_bcsid(r) for r in case.present if r.state != "UNHEALTHY"), default=-1)
    under = over = 0
    for origin in {case.origin(r) for r in case.present}:
        mine = [r for r in case.present if case.origin(r) == origin]
        best = any(_bcsid(r) == top for r in mine if r.state != "UNHEALTHY")
        target = 3 if best else 2
        online = sum(case.op(r) == "S" for r in mine)
        resting = any(case.op(r) == "M" for r in mine)
        if online < target:
            under += (online == 0) if resting else target - online
        over += max(0, online - target)
    return under, over


def _bcsid(r: ReplicaRow) -> int:
    return -1 if r.bcsid is None else r.bcsid


@dataclass
class Count:
    """Numbers of missing replicas and pending commands of a Ratis container, counted with or
    without unhealthy replicas."""

    missing: int
    deletes: int
    adds: int

    @property
    def need(self) -> int:
        """The number of missing replicas if all pending adds fail and all pending deletes
        succeed."""
        return self.missing + self.deletes


def bad(case: Case, r: ReplicaRow) -> bool:
    """Return True if a replica is not a good copy of the container."""
    stale = case.box.state == "CLOSED" and r.state == "QUASI_CLOSED"
    return r.state == "UNHEALTHY" or (stale and _bcsid(r) != case.box.sequence_id)


def ratis_count(case: Case, *, with_bad: bool) -> Count:
    """Count the replicas of a Ratis container, with or without unhealthy replicas."""
    counted = [r for r in case.present if with_bad or not bad(case, r)]
    online = sum(case.op(r) == "S" for r in counted)
    resting = sum(case.op(r) == "M" and not case.going(r) for r in counted)
    factor = case.box.replication_factor
    missing = factor - online
    if missing > 0:
        floor = min(factor, case.maintenance_min) - online
        missing = max(0, floor, missing - resting)
    # A replica that was never counted cannot be lost; an unreported one may be any of the others.
    lost = sum(case.op(r) == "S" and case.going(r) for r in counted) + len(case.strays)
    return Count(missing, lost, len(case.adds))


def spare_unhealthy(case: Case) -> bool:
    """Return True if an UNHEALTHY replica shares its origin with another safe replica."""
    safe = [r for r in case.present if case.up(r) and case.op(r) == "S"]
    origins = Counter(case.origin(r) for r in safe)
    return any(r.state == "UNHEALTHY" and origins[case.origin(r)] > 1 for r in safe)


def vulnerable(case: Case) -> bool:
    """Return True if an UNHEALTHY replica has the last commit of an origin, and no replica in
    service has it."""
    if case.box.state != "QUASI_CLOSED" or all(r.state == "UNHEALTHY" for r in case.present):
        return False
    last = [r for r in case.present if r.bcsid == case.box.sequence_id and case.up(r)]
    safe = {case.origin(r) for r in last if case.op(r) == "S"}
    return any(
        r.state == "UNHEALTHY" and not r.is_empty and case.origin(r) not in safe for r in last
    )


def ratis_chain(case: Case, stuck: bool) -> tuple[str, str]:
    """Return the state and the queue of a Ratis container, by handlers 7, 9, 12 and 13."""
    here = case.present
    healthy = [r for r in here if not bad(case, r)]
    if in_stuck_set(case):
        if not here:
            return "QUASI_CLOSED_STUCK_MISSING", "-"
        if any(r.state != "UNHEALTHY" for r in here):
            under, over = origin_needs(case)
            if under:
                return "QUASI_CLOSED_STUCK_UNDER_REPLICATED", "-" if case.adds else "U"
            if over:
                return "QUASI_CLOSED_STUCK_OVER_REPLICATED", "-" if case.deletes else "O"
            return ("UNHEALTHY_UNDER_REPLICATED", "U") if vulnerable(case) else _rest(stuck)
    a, b = ratis_count(case, with_bad=False), ratis_count(case, with_bad=True)
    if a.need > 0 and not here:
        return "MISSING", "-"
    if healthy or not here:
        found = _ratis_healthy(case, a, b, healthy)
        if found:
            return found
    elif b.need > 0:
        return "UNHEALTHY_UNDER_REPLICATED", "U" if b.need > b.adds else "-"
    elif b.missing < 0:
        return "UNHEALTHY_OVER_REPLICATED", "O" if b.need < 0 else "-"
    else:
        return "UNHEALTHY", "-"
    return ("UNHEALTHY_UNDER_REPLICATED", "U") if vulnerable(case) else _rest(stuck)


def _rest(stuck: bool) -> tuple[str, str]:
    return ("QUASI_CLOSED_STUCK" if stuck else "HEALTHY"), "-"


def _ratis_healthy(
    case: Case, a: Count, b: Count, healthy: list[ReplicaRow]
) -> tuple[str, str] | None:
    """Return the result of handler 9 for a container with a healthy replica; None if the handler
    does not apply."""
    if a.need > 0:
        return "UNDER_REPLICATED", "U" if a.need > a.adds else "-"
    online = [r for r in healthy if case.op(r) == "S"]
    match = sum(r.state == case.box.state for r in online)
    safe = match == len(online) and match >= case.box.replication_factor
    if a.missing < 0:
        return "OVER_REPLICATED", "O" if a.need < 0 and safe else "-"
    if b.missing < 0:
        if case.box.state != "QUASI_CLOSED" or spare_unhealthy(case):
            return "OVER_REPLICATED", "O" if b.need < 0 and safe else "-"
        return None
    if misplaced(case, [case.nodes[r.datanode_id].rack for r in case.present]):
        return "MIS_REPLICATED", "U" if misplaced(case, racks_after(case)) else "-"
    return None


def misplaced(case: Case, racks: Sequence[str]) -> bool:
    """Return True if the placement policy is not satisfied."""
    is_ec = case.box.replication_type == "EC"
    required = min(case.rack_count, case.width if is_ec else 2)
    if case.width == 1 or required <= 1:
        return not racks
    most = ceil(case.width / required) if is_ec else max(case.width - 1, 1)
    most += max(0, len(racks) - case.width)
    return len(set(racks)) < required or any(n > most for n in Counter(racks).values())


def racks_after(case: Case) -> list[str]:
    """Return the racks of the replicas after all pending commands."""
    leaving = {o.datanode_id for o in case.deletes}
    staying = [r.datanode_id for r in case.present if r.datanode_id not in leaving]
    return [case.nodes[d].rack for d in staying + [o.datanode_id for o in case.adds]]


@dataclass
class Indexes:
    """The indexes of an EC container's shards, by the state of their replicas."""

    copies: Counter[int]
    left: Counter[int]
    online: set[int]
    leaving: set[int]
    resting: set[int]
    sick: set[int]
    closed: set[int]


def ec_indexes(case: Case) -> Indexes:
    """Return the index sets of an EC container, from its replicas."""
    alive = [r for r in case.present if not bad(case, r)]
    online = [r for r in alive if case.op(r) == "S"]
    left = Counter(r.replica_index for r in online if not case.going(r))
    left.subtract(o.replica_index for o in case.strays)
    return Indexes(
        Counter(r.replica_index for r in online),
        left,
        {i for i, n in left.items() if n > 0},
        {r.replica_index for r in alive if case.op(r) == "D"},
        {r.replica_index for r in alive if case.op(r) == "M"},
        {r.replica_index for r in case.present if bad(case, r)},
        {r.replica_index for r in case.present if r.state == "CLOSED"},
    )


def ec_sufficient(case: Case, online: set[int], resting: set[int]) -> bool:
    """Return True if all indexes exist, and enough of them are online. Indexes in maintenance
    exist, but are not online."""
    data, parity = case.box.ec_data or 0, case.box.ec_parity or 0
    if len(online) == case.width:
        return True
    return len(online | resting) == case.width and len(online) >= data + min(
        parity, case.ec_redundancy
    )


def ec_chain(case: Case) -> tuple[str, str]:
    """Return the state and the queue of an EC container, by handlers 8, 10 and 11."""
    i = ec_indexes(case)
    data = case.box.ec_data or 0
    adding = {o.replica_index for o in case.adds}
    offline = i.leaving | i.resting
    if not ec_sufficient(case, i.online, i.resting):
        after = ec_sufficient(case, i.online | adding, i.resting)
        only_offline = offline - i.online
        lost = len(i.online | offline) < data
        work = not after and (not lost or bool(only_offline - adding))
        queue = "U" if work else "-"
        if not lost:
            return "UNDER_REPLICATED", queue
        word = "MISSING" if len(i.online | offline | i.sick) < data else "UNHEALTHY"
        return (f"{word}_UNDER_REPLICATED", queue) if only_offline else (word, "-")
    if any(n > 1 for n in i.copies.values()):
        return "OVER_REPLICATED", "O" if any(n > 1 for n in i.left.values()) else "-"
    if case.box.state == "CLOSED" and i.sick and i.sick <= i.closed:
        return "UNHEALTHY_OVER_REPLICATED", "-"
    if misplaced(case, [case.nodes[r.datanode_id].rack for r in case.present]):
        return "MIS_REPLICATED", "U" if misplaced(case, racks_after(case)) else "-"
    return "HEALTHY", "-"


def conditions(case: Case, stuck: bool) -> set[str]:
    """Return the independent conditions, without those about checksums."""
    box, here = case.box, case.present
    if box.suppressed:
        return set()
    sick = [r for r in here if r.state == "UNHEALTHY"]
    answering = [r for r in case.replicas if r.state in TREE and case.up(r)]
    is_empty = empty(case)
    found = {
        "EMPTY": is_empty,
        "OPEN_UNHEALTHY": box.state == "OPEN" and any(r.state != "OPEN" for r in here),
        "OPEN_WITHOUT_PIPELINE": box.state == "OPEN" and not box.pipeline_alive,
        "QUASI_CLOSED_STUCK": stuck and not is_empty,
        "UNHEALTHY_REPLICA": bool(sick),
        "SCAN_FINDINGS": any(r.finding_count > 0 for r in answering),
        "MISSING": box.state == "CLOSING" and not here,
    }
    if box.state in {"CLOSED", "QUASI_CLOSED"} and not is_empty:
        found["MISMATCHED_STATE"] = any(r.state not in {"UNHEALTHY", box.state} for r in here)
        racks = [case.nodes[r.datanode_id].rack for r in here]
        found |= ec_flags(case) if box.replication_type == "EC" else ratis_flags(case, stuck)
        enough = bool(here) and not found["UNDER_REPLICATED"] and not found["DATA_AT_RISK"]
        found["MIS_REPLICATED"] = enough and misplaced(case, racks)
    return {name for name, applies in found.items() if applies}


def ratis_flags(case: Case, stuck: bool) -> dict[str, bool]:
    """Return the flags that depend on the numbers of a Ratis container's replicas."""
    here = case.present
    healthy = [r for r in here if not bad(case, r)]
    a, b = ratis_count(case, with_bad=False), ratis_count(case, with_bad=True)
    may_spare = case.box.state != "QUASI_CLOSED" or spare_unhealthy(case)
    under = bool(here) and (a.need if healthy else b.need) > 0
    over = a.missing < 0 or (b.missing < 0 and may_spare)
    if stuck and in_stuck_set(case) and healthy:
        under, over = (n > 0 for n in origin_needs(case))
    return {
        "MISSING": not here,
        "UNDER_REPLICATED": under,
        "OVER_REPLICATED": over,
        "UNHEALTHY": bool(here) and not healthy,
        "DATA_AT_RISK": not healthy,
        "VULNERABLE": vulnerable(case),
    }


def ec_flags(case: Case) -> dict[str, bool]:
    """Return the flags that depend on the index sets of an EC container."""
    i = ec_indexes(case)
    data = case.box.ec_data or 0
    offline = i.leaving | i.resting
    lost = len(i.online | offline) < data
    missing = len(i.online | offline | i.sick) < data
    short = not ec_sufficient(case, i.online, i.resting)
    return {
        "MISSING": missing,
        "UNDER_REPLICATED": short and (not lost or bool(offline - i.online)),
        "OVER_REPLICATED": any(n > 1 for n in i.copies.values()),
        "UNHEALTHY": lost and not missing,
        "UNHEALTHY_EXCESS": bool(i.sick & i.closed),
        "DATA_AT_RISK": lost,
    }
