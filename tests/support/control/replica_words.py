"""Parser of short descriptions of a container's replicas, such as `C C@4 U/d C/m! C?`."""

from dataclasses import replace
from typing import Any

from merkle.replica import ReplicaState
from scm.state.entities import NodeHealthState, OpState
from tests.support.control.judged_container import JudgedContainer, JudgedReplica
from tests.support.control.scm_world import container, replica

OPS = {
    "d": OpState.DECOMMISSIONING,
    "D": OpState.DECOMMISSIONED,
    "e": OpState.ENTERING_MAINTENANCE,
    "m": OpState.IN_MAINTENANCE,
}
STATES = {
    "C": ReplicaState.CLOSED,
    "Q": ReplicaState.QUASI_CLOSED,
    "U": ReplicaState.UNHEALTHY,
    "O": ReplicaState.OPEN,
    "R": ReplicaState.RECOVERING,
}


def placed(words: str, racks: str = "") -> tuple[JudgedReplica, ...]:
    """Return the replicas that `words` describes, for example `C C@4 U/d C/m! C?`. A word has the
    state, `@` and the BCSID, `/` and the node's op state, `!` for a dead or `?` for a stale
    node."""
    result = []
    for i, word in enumerate(words.split()):
        health = {"!": NodeHealthState.DEAD, "?": NodeHealthState.STALE}.get(
            word[-1], NodeHealthState.HEALTHY
        )
        word = word.rstrip("!?")
        kind, _, op = word.partition("/")
        state, _, bcsid = kind.partition("@")
        made = replica(f"dn{i + 1}", STATES[state], bcsid=int(bcsid or 5))
        rack = f"/{racks[i]}" if racks else f"/r{i}"
        result.append(JudgedReplica(made, health, OPS.get(op, OpState.IN_SERVICE), rack))
    return tuple(result)


def case(words: str, racks: str = "", **more: object) -> JudgedContainer:
    """Return a container with the replicas that `words` describes. The cluster has as many racks as
    the replicas name."""
    replicas = placed(words, racks)
    made = JudgedContainer(
        container(), replicas, cluster_rack_count=len({p.rack for p in replicas}) or 1
    )
    return replace(made, **more)  # type: ignore[arg-type]


def changed(
    given: JudgedContainer, number: int, of_replica: dict[str, Any], **of_place: Any
) -> JudgedContainer:
    """Return a case with fields of one replica, and of its place, changed. `number` counts the
    replicas from 1."""
    held = list(given.placed)
    p = held[number - 1]
    held[number - 1] = replace(p, replica=replace(p.replica, **of_replica), **of_place)
    return replace(given, placed=tuple(held))


def shards(words: str, racks: str = "") -> JudgedContainer:
    """Return an RS(3,2) container with the shards that `words` describes, for example `C#1 C#2/d`:
    the state, `#` and the index of the shard, then as in `placed`."""
    pairs = [word.partition("#") for word in words.split()]
    plain = case(" ".join(state + rest[1:] for state, _, rest in pairs), racks)
    placed = tuple(
        replace(p, replica=replace(p.replica, replica_index=int(rest[0])))
        for p, (_state, _, rest) in zip(plain.placed, pairs, strict=True)
    )
    ec = replace(container(replication_factor=5), scheme="rs-3-2-1024k")
    return replace(plain, container=ec, placed=placed)
