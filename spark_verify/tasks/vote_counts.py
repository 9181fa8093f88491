"""Finds the replicas that could have lost a vote about their roots, and those that lost it.

A replica is *exposed* if it could have lost the vote: its container has a majority, and enough
other replicas voted. Erasure-coded shards, single replicas, and replicas that do not answer are not
exposed. If they were counted, a volume with many of them would seem healthy.

If all other voters run one software version and the replica's datanode runs another, the replica
voted `against` that version. Either version may be the cause of a loss (`health.blame`).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from health.judge import HealthJudgement
from health.segmented_rows import Groups, Ints
from spark_verify.input_columns import schema_of
from spark_verify.tasks.judge_batches import BatchSlice

VOTE: Final = schema_of("datanode_id string, volume_id string, against string, is_lost boolean")
"""One exposed replica. `against` is the version of all others if it differs from the replica's
version, else empty.
"""


def votes(judgement: HealthJudgement, cut: BatchSlice, versions: Sequence[str]) -> pa.Table:
    """Return one row per exposed replica. `versions` are those of the judge's nodes, in order."""
    compared, batch = judgement.compared, judgement.view.batch
    rows = np.flatnonzero(compared.is_exposed)
    node = batch.replicas.node[rows]
    words, of_node = np.unique(np.array([*versions, ""]), return_inverse=True)
    against = _against(compared.contest[rows], of_node[node])
    shown = pa.array([*words.tolist(), ""], pa.string())
    names = pa.array(batch.nodes.names, pa.string())
    columns = {
        "container_id": batch.containers.container_id[batch.replicas.container[rows]],
        "datanode_id": names.take(pa.array(node)),
        "volume_id": cut.rows(rows, "volume_id")["volume_id"].cast(pa.string()),
        "against": shown.take(pa.array(np.where(against < 0, len(words), against))),
        "is_lost": pa.array(compared.is_minority[rows]),
    }
    return pa.table(columns, schema=pa.schema([("container_id", pa.int64()), *VOTE]))


def _against(contest: Ints, version: Ints) -> Ints:
    """Return for each voter the version of all others in its contest if they share one that differs
    from its own, else -1.
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
