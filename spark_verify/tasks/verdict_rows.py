"""Converts the classification of containers to Arrow rows of each result table.

A replica is called *exposed* if a wrong root of this replica would be noticed: most replicas of its
container have the same root, and enough other replicas have a root. Erasure-coded shards, single
replicas and unreachable replicas are not exposed. If they were counted, a volume with many of them
would seem to be healthy.

If all other replicas have the same software version, and this replica has another version, then the
version of the others is stored in the column `against`. If the roots differ, either of the two
versions may be the cause (see `health.blame`).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from health import words
from health.judge import HealthJudgement, roles
from health.plan.plan_rows import RaggedArray
from health.reconcile_eligibility import REASONS, REDUNDANCY_UNKNOWN
from health.root_comparison import incomparable_reasons
from health.segmented_rows import Bools, Groups, Ints
from health.source_issues import DOUBTS
from spark_verify.input_columns import schema_of
from spark_verify.result_tables import JUDGED, PLAN_REPLICA
from spark_verify.tasks.judge_batches import BatchSlice

VOTE: Final = schema_of("datanode_id string, volume_id string, against string, is_lost boolean")
"""Columns of the row about an exposed replica, which is a replica that can be compared with a
majority.

`against` is the software version of all other replicas, if they have the same version and this
replica has another. Otherwise, it is "".
"""


def judged_tables(judgement: HealthJudgement, cut: BatchSlice) -> dict[str, pa.Table]:
    """Return the rows of a classified batch in each table of `result_tables.JUDGED`."""
    columns = {
        "health": _health(judgement, cut),
        "replica_class": _replica_class(judgement, cut, _matters(judgement)),
        "divergent": _divergent(judgement, cut),
        "plan": _plan(judgement),
    }
    return {
        name: pa.table(columns[name]).select(schema.names).cast(schema)
        for name, schema in JUDGED.items()
    }


def _health(judgement: HealthJudgement, cut: BatchSlice) -> dict[str, pa.Array]:
    view, verdicts, reconciles = judgement.view, judgement.verdicts, judgement.reconciles
    containers = view.batch.containers
    return {
        "container_id": pa.array(containers.container_id),
        "state": _words(containers.state, words.CONTAINER_STATES),
        "replication_type": _words(containers.kind, words.REPLICATION_TYPES),
        "health_state": pa.array(verdicts.state),
        "flags": pa.array(judgement.flags),
        "queue": _words(verdicts.queue, words.QUEUES),
        "is_qc_stuck": pa.array(verdicts.is_stuck),
        "checksum_class": _words(judgement.compared.checksum_class, words.CLASSES),
        "why_not_compared": _words(
            incomparable_reasons(view, judgement.compared), words.INCOMPARABLE
        ),
        "eligibility": _words(reconciles.eligibility, words.ELIGIBILITY),
        "remaining_redundancy": _redundancy(reconciles.redundancy),
        "replica_count": pa.array(view.rows.sizes()),
        "is_known": pa.array(containers.is_known),
        "scm_health_state": cut.containers["health_state"].cast(pa.string()),
    }


def _redundancy(redundancy: Ints) -> pa.Array:
    return pa.array(redundancy, mask=redundancy == REDUNDANCY_UNKNOWN)


def _matters(judgement: HealthJudgement) -> Bools:
    """Return a mask of the containers that have a problem.

    A container has a problem if it has a flag, if its health state is not HEALTHY, if the SCM does
    not know it, or if the roots of its replicas differ.
    """
    compared, batch = judgement.compared, judgement.view.batch
    found: Bools = np.isin(
        compared.checksum_class, [words.CLASSES.index(c) for c in words.DIFFERING]
    )
    found |= (judgement.flags != 0) | (judgement.verdicts.state != words.HealthState.HEALTHY)
    found |= ~batch.containers.is_known
    found[batch.replicas.container[compared.is_minority]] = True
    return found


def _replica_class(
    judgement: HealthJudgement, cut: BatchSlice, matters: Bools
) -> dict[str, pa.Array]:
    view, compared = judgement.view, judgement.compared
    rows = np.flatnonzero(view.of_container(matters))
    shown = ("datanode_id", "replica_index", "volume_id", "root", "tree_algorithm", "finding_count")
    replicas = cut.rows(rows, "container_id", *shown)
    return {name: replicas[name] for name in replicas.column_names} | {
        "state": _words(view.batch.replicas.state[rows], words.REPLICA_STATES),
        "is_reachable": pa.array(view.is_reachable[rows]),
        "role": _words(roles(judgement)[rows], words.ROLES),
        "is_minority": pa.array(compared.is_minority[rows]),
        "checksum_class": _words(view.of_container(compared.checksum_class)[rows], words.CLASSES),
    }


def _divergent(judgement: HealthJudgement, cut: BatchSlice) -> dict[str, pa.Array]:
    view, reconciles = judgement.view, judgement.reconciles
    wanted = np.flatnonzero(reconciles.is_wanted)
    rows = np.flatnonzero(view.is_countable & view.of_container(reconciles.is_wanted))
    replicas = cut.rows(rows, *PLAN_REPLICA.names)
    structs = {
        name: replicas[name].cast(PLAN_REPLICA.field(name).type).combine_chunks()
        for name in PLAN_REPLICA.names
    } | {"state": _words(view.batch.replicas.state[rows], words.REPLICA_STATES)}
    fields = list(PLAN_REPLICA)
    own = np.searchsorted(wanted, view.batch.replicas.container[rows])
    reasons, which = np.unique(reconciles.reasons[wanted], return_inverse=True)
    texts = [
        "; ".join(word for place, word in enumerate(REASONS) if mask >> place & 1)
        for mask in reasons.tolist()
    ]
    return {
        "container_id": pa.array(view.batch.containers.container_id[wanted]),
        "action": pa.repeat("reconcile", len(wanted)),
        "attempts": pa.repeat(0, len(wanted)),
        "is_backed_off": pa.repeat(pa.scalar(False), len(wanted)),
        "priority": _redundancy(reconciles.redundancy[wanted]),
        "reason": _words(which, texts),
        "checksum_class": _words(judgement.compared.checksum_class[wanted], words.CLASSES),
        "replicas": _lists(
            RaggedArray.of(own, own, len(wanted)),
            pa.StructArray.from_arrays([structs[f.name] for f in fields], fields=fields),
        ),
        "bytes_estimated": pa.array(reconciles.bytes_estimated[wanted]),
    }


def _plan(judgement: HealthJudgement) -> dict[str, pa.Array]:
    actions, batch = judgement.actions, judgement.view.batch
    names = pa.array(batch.nodes.names, pa.string())

    def named(lists: RaggedArray) -> pa.ListArray:
        return _lists(lists, names.take(pa.array(batch.replicas.node[lists.values])))

    doubts = source_doubts(judgement)
    reasons = [
        f"{reason}; no better source than {'; '.join(told)}" if told else reason
        for reason, told in zip(actions.reason.tolist(), doubts, strict=True)
    ]
    return {
        "container_id": pa.array(batch.containers.container_id[actions.container]),
        "action": _words(actions.action, words.ACTIONS),
        "priority": pa.array(actions.priority),
        "reason": pa.array(reasons, pa.string()),
        "sources": named(actions.sources),
        "doubts": pa.array(doubts, pa.list_(pa.string())),
        "targets": named(actions.targets),
        "indexes": _lists(actions.indexes, pa.array(actions.indexes.values)),
        "copies": pa.array(actions.copies),
        "is_forced": pa.array(actions.is_forced),
        "bytes_estimated": pa.array(actions.bytes_estimated),
    }


def source_doubts(judgement: HealthJudgement) -> list[list[str]]:
    """Return, for each row of the plan, texts about the known problems of its source replicas."""
    actions, batch = judgement.actions, judgement.view.batch
    told: list[list[str]] = [[] for _ in range(len(actions.container))]
    place = np.repeat(np.arange(len(told)), actions.sources.sizes())
    codes = judgement.source_issues[actions.sources.values]
    for i in np.flatnonzero(codes).tolist():
        name = batch.nodes.names[batch.replicas.node[actions.sources.values[i]]]
        told[place[i]].append(f"{name}: {DOUBTS[codes[i]]}")
    return told


def _lists(lists: RaggedArray, values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(lists.starts, pa.int32()), values)


def _words(codes: Ints, known: Sequence[str]) -> pa.Array:
    """Return the words in `known` at the indexes `codes`. The index UNKNOWN gives null."""
    return pa.array(known, pa.string()).take(pa.array(codes, mask=codes < 0))


def votes(judgement: HealthJudgement, cut: BatchSlice, versions: Sequence[str]) -> pa.Table:
    """Return one row, with the columns of VOTE, for each replica that can be compared with a
    majority of replicas.

    In a row, `is_lost` is True if the root of the replica differs from the root of the majority.
    `versions` has the software version of each datanode.
    """
    compared, batch = judgement.compared, judgement.view.batch
    rows = np.flatnonzero(compared.is_exposed)
    node = batch.replicas.node[rows]
    known, of_node = np.unique(np.array([*versions, ""]), return_inverse=True)
    against = _against(compared.contest[rows], of_node[node])
    shown = pa.array([*known.tolist(), ""], pa.string())
    names = pa.array(batch.nodes.names, pa.string())
    columns = {
        "container_id": batch.containers.container_id[batch.replicas.container[rows]],
        "datanode_id": names.take(pa.array(node)),
        "volume_id": cut.rows(rows, "volume_id")["volume_id"].cast(pa.string()),
        "against": shown.take(pa.array(np.where(against < 0, len(known), against))),
        "is_lost": pa.array(compared.is_minority[rows]),
    }
    return pa.table(columns, schema=pa.schema([("container_id", pa.int64()), *VOTE]))


def _against(contest: Ints, version: Ints) -> Ints:
    """Return, for each replica, the software version of the other replicas if it differs from its
    own.

    `contest` has the number of the comparison in which each replica takes part, and `version` its
    software version. The result is -1 if the others have several versions, or the same version.
    """
    same = Groups.of(contest, version)
    size = same.tally()
    own = contest[same.first]
    _, place, kinds = np.unique(own, return_inverse=True, return_counts=True)
    both = np.zeros(len(kinds), dtype=np.int64)
    np.add.at(both, place, version[same.first])
    other = both[place] - version[same.first]
    stands_alone = (size == 1) & (kinds[place] == 2)
    found: Ints = np.where(stands_alone, other, -1)[same.of_row]
    return found
