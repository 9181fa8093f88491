"""Computes the summary of a run, from which its reports are rendered."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from health.blame import suspects
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
from spark_verify.frames.counting import RECONCILE, HealthGroup
from spark_verify.frames.volumes import AGE_DAYS, AGES

Ids = Mapping[tuple[str, ...], list[int]]
"""Container ids by label (`frames.counting.sample_ids`)."""

LEAVING_MAX: Final = 500
"""Maximum number of leaving nodes in the summary."""


def count_health(kinds: Iterable[HealthGroup]) -> dict[str, Any]:
    """Return counters over all containers."""
    states = dict.fromkeys(CONTAINER_STATES, 0)
    classes = dict.fromkeys(CLASSES, 0)
    health_states = dict.fromkeys((state.name for state in HealthState), 0)
    flags = dict.fromkeys(FLAGS, 0)
    known = [kind for kind in kinds if kind.is_known]
    for kind in known:
        states[kind.state] += kind.count
        classes[kind.checksum_class] += kind.count
        for number in states_counted(kind.health_state, is_stuck=kind.is_qc_stuck) or [0]:
            health_states[HealthState(number).name] += kind.count
        for name in flag_names(kind.flags):
            flags[name] += kind.count
    return {
        "containers": sum(kind.count for kind in known),
        "unknown_containers": sum(kind.count for kind in kinds if not kind.is_known),
        "states": states,
        "health_states": health_states,
        "flags": flags,
        "flagged": sum(kind.count for kind in known if kind.flags),
        "checksum_classes": classes,
    }


def samples(ids: Ids) -> dict[str, dict[str, list[int]]]:
    """Return the first ids for each flag, health state and mismatch class that occurs."""
    counted = (
        s for s in HealthState if s not in (HealthState.HEALTHY, HealthState.QUASI_CLOSED_STUCK)
    )
    asked = {
        "flags": {name: ("flag", str(place)) for place, name in enumerate(FLAGS)},
        "health_states": {s.name: ("health", str(int(s))) for s in counted},
        "checksum_classes": {name: ("class", name) for name in CLASSES},
    }
    return {
        what: {name: ids[label] for name, label in labels.items() if label in ids}
        for what, labels in asked.items()
    }


def incomparable(kinds: Sequence[HealthGroup], ids: Ids) -> dict[str, dict[str, Any]]:
    """Return the number and the first ids of the containers for each reason why they cannot be
    compared.
    """
    counts: Counter[str | None] = Counter()
    for kind in kinds:
        if kind.is_known:
            counts[kind.why_not_compared] += kind.count
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


def agreement(kinds: Sequence[HealthGroup], ids: Ids) -> dict[str, Any]:
    """Return how often the control plane's state of a container differs from the judge's."""
    counts: Counter[tuple[str, str]] = Counter()
    for kind in kinds:
        if kind.disagreement:
            counts[kind.disagreement] += kind.count
    differences = [
        {"scm": scm, "judge": own, "containers": count, "ids": ids["scm", scm, own]}
        for (scm, own), count in sorted(counts.items())
    ]
    return {
        "compared": sum(kind.count for kind in kinds if kind.scm_health_state is not None),
        "differing": counts.total(),
        "differences": differences,
    }


def leaving_nodes(
    departures: Mapping[str, Sequence[int]],
    nodes: Iterable[dict[str, Any]],
    volumes: Iterable[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return one entry per node that is not in service, the most held back first.

    `volumes` has the replica count of each volume.
    """
    held: Counter[str] = Counter()
    for volume in volumes:
        held[volume["datanode_id"]] += volume["replicas"]
    none = [0] * (len(HELD_BY) + 2)
    found = []
    for node in nodes:
        if node["op_state"] == "IN_SERVICE":
            continue
        name = node["datanode_id"]
        *by, in_progress, locked_out = departures.get(name, none)
        found.append(
            {
                "datanode_id": name,
                "op_state": node["op_state"],
                "health": node["health"],
                "containers": held[name],
                **dict(zip(HELD_BY, by, strict=True)),
                "in_progress": in_progress,
                "remaining": sum(by),
                "locked_out_now": locked_out,
                "may_go": not sum(by),
            }
        )
    found.sort(key=lambda entry: (-entry["remaining"], entry["datanode_id"]))
    return found[:LEAVING_MAX]


def blame(votes: list[dict[str, Any]], nodes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the suspects among volumes, nodes, racks and versions."""
    return [asdict(suspect) for suspect in suspects(votes, nodes)]
