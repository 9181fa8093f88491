"""Computes the summary of a run. The reports are created from the summary."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from health import words
from spark_verify.frames.counting import RECONCILE
from spark_verify.frames.volumes import AGES
from spark_verify.result_tables import AGE_DAYS
from suture.runtime.exit_codes import ExitCode

Ids = Mapping[tuple[str, ...], list[int]]
"""Example container ids for each label (see `frames.counting.sample_ids`)."""


def count_health(kinds: Iterable[Any]) -> dict[str, Any]:
    """Return the number of containers, in total and by state, health state, flag, and checksum
    class."""
    states = dict.fromkeys(words.CONTAINER_STATES, 0)
    classes = dict.fromkeys(words.CLASSES, 0)
    health_states = dict.fromkeys((state.name for state in words.HealthState), 0)
    flags = dict.fromkeys(words.FLAGS, 0)
    known = [kind for kind in kinds if kind.is_known]
    for kind in known:
        states[kind.state] += kind.containers
        classes[kind.checksum_class] += kind.containers
        for number in words.states_counted(kind.health_state, is_stuck=kind.is_qc_stuck) or [0]:
            health_states[words.HealthState(number).name] += kind.containers
        for name in words.flag_names(kind.flags):
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
    """Return example container ids for each flag, health state and class of mismatch that
    occurs."""
    uncounted = (words.HealthState.HEALTHY, words.HealthState.QUASI_CLOSED_STUCK)
    asked = {
        "flags": words.FLAGS,
        "health_states": [state.name for state in words.HealthState if state not in uncounted],
        "checksum_classes": words.CLASSES,
    }
    return {
        what: {name: ids[what, name] for name in names if (what, name) in ids}
        for what, names in asked.items()
    }


def incomparable(kinds: Sequence[Any], ids: Ids) -> dict[str, dict[str, Any]]:
    """Return the containers whose replicas cannot be compared: their number and example ids, by
    reason.
    """
    counts: Counter[str | None] = Counter()
    for kind in kinds:
        if kind.is_known:
            counts[kind.why_not_compared] += kind.containers
    return {
        word: {"containers": counts[word], "ids": ids["why", word]}
        for word in words.INCOMPARABLE
        if counts[word]
    }


def count_plan(
    counted: Mapping[str, tuple[int, int]], scan: tuple[int, int]
) -> dict[str, dict[str, int]]:
    """Return the number of rows and bytes for each action in the plans.

    Reconciles that are delayed because earlier ones had no effect are not counted.
    """
    whole = {**counted, "scan": scan}
    return {
        action: dict(zip(("rows", "bytes"), whole.get(action, (0, 0)), strict=True))
        for action in (RECONCILE, *words.ACTIONS)
    }


def verification_ages(volumes: list[dict[str, Any]]) -> dict[str, int]:
    """Return the number of replicas by the age of their last full scan, for all replicas with a
    tree."""
    labels = [f"<= {days} d" for days in AGE_DAYS] + [f"> {AGE_DAYS[-1]} d"]
    counts = {
        label: sum(v[name] for v in volumes) for label, name in zip(labels, AGES, strict=True)
    }
    return counts | {"never": sum(v["never_verified"] for v in volumes)}


def count_lost(votes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how often the replicas of each volume differed from the majority of their containers.

    Volumes without such replicas are omitted. `votes` are rows of the table `votes/`.
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
    """Compare the health states of the SCM with the health states that this job has computed.

    Return the number of compared containers, and the number and example ids of those that differ.
    """
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


def exit_code(summary: Mapping[str, Any]) -> ExitCode:
    """Return the exit code for a summary.

    Planned scans do not count as work to do, because agents also scan without a plan.
    """
    if summary["flags"]["DATA_AT_RISK"]:
        return ExitCode.DATA_AT_RISK
    planned = sum(p["rows"] for action, p in summary["plan"].items() if action != "scan")
    todo = planned or summary["flagged"] or summary["unknown_containers"]
    return ExitCode.TO_DO if todo or any(summary["disagreement"].values()) else ExitCode.OK
