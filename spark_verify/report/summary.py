"""The run in numbers: what summary.json says, the report draws, and the text report prints."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from health.departure import HELD_BY
from health.words import (
    ACTIONS,
    CLASSES,
    CONTAINER_STATES,
    DISPUTED,
    FLAGS,
    INCOMPARABLE,
    Health,
    flag_names,
    states_counted,
)
from spark_verify.report.blame import suspects
from spark_verify.tasks.tallies import Tallies
from spark_verify.tasks.volume_counts import AGE_DAYS

LEAVING_MAX: Final = 500
"""Leaving nodes that are shown."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How many containers are of one kind, and the lowest ids of those with any flag."""

    state: str
    health_state: int
    is_stuck: bool
    flags: int
    checksum_class: str
    is_known: bool
    count: int
    ids: Sequence[int] = ()


def judged_kinds(tallies: Tallies) -> list[Kind]:
    """Return what the judge counted."""
    return [
        Kind(
            state,
            int(health),
            stuck == "1",
            int(flags),
            checksum_class,
            known == "1",
            count,
            tallies.ids("health", (state, health, stuck, flags, checksum_class, known)),
        )
        for (state, health, stuck, flags, checksum_class, known), (count,) in tallies.of(
            "health"
        ).items()
    ]


def count_health(kinds: Iterable[Kind]) -> dict[str, Any]:
    """Return counters over all containers."""
    states = dict.fromkeys(CONTAINER_STATES, 0)
    classes = dict.fromkeys(CLASSES, 0)
    health_states = dict.fromkeys((state.name for state in Health), 0)
    flags = dict.fromkeys(FLAGS, 0)
    known = [kind for kind in kinds if kind.is_known]
    for kind in known:
        states[kind.state] += kind.count
        classes[kind.checksum_class] += kind.count
        for number in states_counted(kind.health_state, is_stuck=kind.is_stuck) or [0]:
            health_states[Health(number).name] += kind.count
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


def samples(kinds: Iterable[Kind], sample_max: int) -> dict[str, dict[str, list[int]]]:
    """Return the first ids of every flag, health state and mismatch that any container has."""
    found: dict[str, dict[str, set[int]]] = {
        "flags": {},
        "health_states": {},
        "checksum_classes": {},
    }
    for kind in kinds:
        if not kind.is_known:
            continue
        for name in flag_names(kind.flags):
            found["flags"].setdefault(name, set()).update(kind.ids)
        state = Health(kind.health_state)
        if state not in (Health.HEALTHY, Health.QUASI_CLOSED_STUCK):
            found["health_states"].setdefault(state.name, set()).update(kind.ids)
        if kind.checksum_class in DISPUTED:
            found["checksum_classes"].setdefault(kind.checksum_class, set()).update(kind.ids)
    order = {"flags": FLAGS, "health_states": tuple(s.name for s in Health)}
    return {
        what: {
            name: sorted(names[name])[:sample_max]
            for name in order.get(what, CLASSES)
            if name in names
        }
        for what, names in found.items()
    }


def incomparable(tallies: Tallies) -> dict[str, dict[str, Any]]:
    """Return for each reason why containers cannot be compared how many they are, and the first
    of them."""
    return {
        word: {"containers": count, "ids": tallies.ids("incomparable", (word,))}
        for word in INCOMPARABLE
        if (count := tallies.of("incomparable").get((word,), [0])[0])
    }


def count_plan(tallies: Tallies, scan: tuple[int, int]) -> dict[str, dict[str, int]]:
    """Return rows and bytes per action; what is backed off is none of them."""
    counted: dict[str, Sequence[int]] = {word: n for (word,), n in tallies.of("plan").items()}
    counted["scan"] = scan
    return {
        action: dict(zip(("rows", "bytes"), counted.get(action, (0, 0)), strict=True))
        for action in ("reconcile", *ACTIONS)
    }


def verification_ages(volumes: list[dict[str, Any]]) -> dict[str, int]:
    """Return the histogram of verification age over all replicas that have a tree."""
    labels = [f"<= {days} d" for days in AGE_DAYS] + [f"> {AGE_DAYS[-1]} d"]
    counts = {label: sum(v[f"age_{i}"] for v in volumes) for i, label in enumerate(labels)}
    return counts | {"never": sum(v["never"] for v in volumes)}


def count_lost(votes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how many replicas of each node and volume lost the vote, of those that lost any.
    `votes` are rows of `tasks.votes.NO_VOTES`."""
    lost: Counter[tuple[str, str]] = Counter()
    for row in votes:
        lost[row["datanode_id"], row["volume_id"]] += row["lost"]
    return [
        {"datanode_id": datanode_id, "volume_id": volume_id, "count": count}
        for (datanode_id, volume_id), count in sorted(lost.items())
        if count
    ]


def agreement(tallies: Tallies) -> dict[str, Any]:
    """Return of how many containers the control plane's own state is another than the judge's."""
    differences = [
        {"scm": scm, "judge": own, "containers": count, "ids": tallies.ids("disagreed", (scm, own))}
        for (scm, own), (count,) in sorted(tallies.of("disagreed").items())
    ]
    return {
        "compared": tallies.of("compared").get((), [0])[0],
        "differing": sum(found["containers"] for found in differences),
        "differences": differences,
    }


def leaving_nodes(
    tallies: Tallies, nodes: Iterable[dict[str, Any]], volumes: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return one entry per node that is not in service, most held back first.

    `volumes` says how many replicas each node has.
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
        *by, in_progress, locked_out = tallies.of("leaving").get((name,), none)
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


def blame(votes: list[dict[str, Any]], nodes: list[Any]) -> list[dict[str, Any]]:
    """Return the suspects among volumes, nodes, racks and versions."""
    return [asdict(suspect) for suspect in suspects(votes, nodes)]


def scope(summary: dict[str, Any]) -> str:
    """Say which containers a partial result is about."""
    return (
        f"Only the {summary['containers']:,} of {summary['rows']['containers']:,} containers with "
        f"a replica on {', '.join(summary['changed_nodes'])} were verified; nothing is said of the "
        "others."
    )


def text_report(summary: dict[str, Any]) -> str:
    """Return the run as Ozone's Replication Manager would print it."""
    at = datetime.fromtimestamp(summary["as_of_ms"] / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    title = f"Container Summary Report generated at {at}"
    lines = [title, "=" * len(title)]
    if summary["is_partial"]:
        lines = [f"PARTIAL {title}", "=" * (len(title) + 8), scope(summary)]
    lines += ["", "Container State Summary", "-" * 23]
    lines += [f"{name}: {count}" for name, count in summary["states"].items()]
    lines += ["", "Container Health Summary", "-" * 24]
    lines += [
        f"{name}: {count}" for name, count in summary["health_states"].items() if name != "HEALTHY"
    ]
    lines += [f"(without any flag: {summary['containers'] - summary['flagged']})"]
    if summary["unknown_containers"]:
        lines += [f"(of no container, but with replicas: {summary['unknown_containers']})"]
    agreed = summary["agreement"]
    same = agreed["compared"] - agreed["differing"]
    lines += ["", f"The SCM agrees on {same} containers, differs on {agreed['differing']}."]
    for found in agreed["differences"]:
        ids = ", ".join(map(str, found["ids"]))
        lines += [f"{found['scm']} for the SCM, {found['judge']} here: {ids}"]
    for name, ids in summary["samples"]["health_states"].items():
        lines += [
            "",
            f"First {summary['inputs']['sample_max']} {name} containers:",
            ", ".join(map(str, ids)),
        ]
    told = summary["keys_at_risk"]
    if told and told["key_count"]:
        lines += ["", f"First of {told['key_count']} keys in containers at risk, for the SCM:"]
        lines += [
            f"{one['key']} (in {', '.join(map(str, one['container_ids']))})" for one in told["keys"]
        ]
    return "\n".join(lines)
