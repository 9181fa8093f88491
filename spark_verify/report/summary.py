"""Computes the summary of a run, from which its reports are rendered."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from health.departure import HELD_BY
from health.words import (
    ACTIONS,
    CLASSES,
    CONTAINER_STATES,
    FLAGS,
    INCOMPARABLE,
    HealthState,
    flag_names,
    states_counted,
)
from spark_verify.frames.counting import DEPARTURES, RECONCILE
from spark_verify.frames.volumes import AGE_DAYS, AGES
from suture.runtime.exit_codes import ExitCode

Ids = Mapping[tuple[str, ...], list[int]]
"""Container ids by label (`frames.counting.sample_ids`)."""

LEAVING_MAX: Final = 500
"""Maximum number of leaving nodes in the summary."""


def count_health(kinds: Iterable[Any]) -> dict[str, Any]:
    """Return counters over all containers."""
    states = dict.fromkeys(CONTAINER_STATES, 0)
    classes = dict.fromkeys(CLASSES, 0)
    health_states = dict.fromkeys((state.name for state in HealthState), 0)
    flags = dict.fromkeys(FLAGS, 0)
    known = [kind for kind in kinds if kind.is_known]
    for kind in known:
        states[kind.state] += kind.containers
        classes[kind.checksum_class] += kind.containers
        for number in states_counted(kind.health_state, is_stuck=kind.is_qc_stuck) or [0]:
            health_states[HealthState(number).name] += kind.containers
        for name in flag_names(kind.flags):
            flags[name] += kind.containers
    return {
        "containers": sum(kind.containers for kind in known),
        "unknown_containers": sum(kind.containers for kind in kinds if not kind.is_known),
        "states": states,
        "health_states": health_states,
        "flags": flags,
        "flagged": sum(kind.containers for kind in known if kind.flags),
        "checksum_classes": classes,
    }


def samples(ids: Ids) -> dict[str, dict[str, list[int]]]:
    """Return the first ids for each flag, health state and mismatch class that occurs."""
    uncounted = (HealthState.HEALTHY, HealthState.QUASI_CLOSED_STUCK)
    asked = {
        "flags": FLAGS,
        "health_states": [state.name for state in HealthState if state not in uncounted],
        "checksum_classes": CLASSES,
    }
    return {
        what: {name: ids[what, name] for name in names if (what, name) in ids}
        for what, names in asked.items()
    }


def incomparable(kinds: Sequence[Any], ids: Ids) -> dict[str, dict[str, Any]]:
    """Return the number and the first ids of the containers for each reason why they cannot be
    compared.
    """
    counts: Counter[str | None] = Counter()
    for kind in kinds:
        if kind.is_known:
            counts[kind.why_not_compared] += kind.containers
    return {
        word: {"containers": counts[word], "ids": ids["why", word]}
        for word in INCOMPARABLE
        if counts[word]
    }


def count_plan(
    counted: Mapping[str, tuple[int, int]], scan: tuple[int, int]
) -> dict[str, dict[str, int]]:
    """Return rows and bytes per action, without backed-off reconciles."""
    whole = {**counted, "scan": scan}
    return {
        action: dict(zip(("rows", "bytes"), whole.get(action, (0, 0)), strict=True))
        for action in (RECONCILE, *ACTIONS)
    }


def verification_ages(volumes: list[dict[str, Any]]) -> dict[str, int]:
    """Return the histogram of verification ages over all replicas that have a tree."""
    labels = [f"<= {days} d" for days in AGE_DAYS] + [f"> {AGE_DAYS[-1]} d"]
    counts = {
        label: sum(v[name] for v in volumes) for label, name in zip(labels, AGES, strict=True)
    }
    return counts | {"never": sum(v["never_verified"] for v in volumes)}


def count_lost(votes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the number of lost votes per node and volume, without those that lost none. `votes`
    are rows of `votes/`.
    """
    lost: Counter[tuple[str, str]] = Counter()
    for row in votes:
        lost[row["datanode_id"], row["volume_id"]] += row["lost"]
    return [
        {"datanode_id": datanode_id, "volume_id": volume_id, "count": count}
        for (datanode_id, volume_id), count in sorted(lost.items())
        if count
    ]


def agreement(kinds: Sequence[Any], ids: Ids) -> dict[str, Any]:
    """Return how often the control plane's state of a container differs from the judge's."""
    counts: Counter[tuple[str, str]] = Counter()
    for kind in kinds:
        if kind.scm_health_state not in (None, kind.own_health_state):
            counts[kind.scm_health_state, kind.own_health_state] += kind.containers
    differences = [
        {"scm": scm, "judge": own, "containers": count, "ids": ids["scm", scm, own]}
        for (scm, own), count in sorted(counts.items())
    ]
    return {
        "compared": sum(kind.containers for kind in kinds if kind.scm_health_state is not None),
        "differing": counts.total(),
        "differences": differences,
    }


def leaving_nodes(
    departures: Mapping[str, Mapping[str, int]],
    nodes: Iterable[dict[str, Any]],
    volumes: Iterable[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return one entry per node that is not in service, first the node with the most containers
    that prevent its departure.

    `departures` has the counts of `frames.counting.DEPARTURES`, `volumes` the replica count of each
    volume.
    """
    held: Counter[str] = Counter()
    for volume in volumes:
        held[volume["datanode_id"]] += volume["replicas"]
    found = []
    for node in nodes:
        if node["op_state"] == "IN_SERVICE":
            continue
        entry = {name: node[name] for name in ("datanode_id", "op_state", "health")}
        entry["containers"] = held[node["datanode_id"]]
        entry |= departures.get(node["datanode_id"], dict.fromkeys(DEPARTURES, 0))
        entry["remaining"] = sum(entry[word] for word in HELD_BY)
        found.append(entry | {"may_go": not entry["remaining"]})
    found.sort(key=lambda entry: (-entry["remaining"], entry["datanode_id"]))
    return found[:LEAVING_MAX]


def exit_code(summary: Mapping[str, Any]) -> ExitCode:
    """Return the exit code for a summary. Missing scans do not count as work, because agents scan
    without a plan.
    """
    if summary["flags"]["DATA_AT_RISK"]:
        return ExitCode.DATA_AT_RISK
    planned = sum(p["rows"] for action, p in summary["plan"].items() if action != "scan")
    todo = planned or summary["flagged"] or summary["unknown_containers"]
    return ExitCode.TO_DO if todo or any(summary["disagreement"].values()) else ExitCode.OK
