"""How replicas voted: which of them could have lost a contest about their roots, and which did.

A replica is *exposed* where enough others voted beside it to outvote it, and the contest was
decided. Erasure-coded shards, replicas that stand alone, and those that do not answer are not: to
count them would make a volume that holds many of them look innocent.

Where all others of a contest run one version, and the replica another, it stood `against` that
version: then a loss may be the fault of either (`health.blame`).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from health.judge import HealthJudgement
from health.segments import Groups, Ints
from spark_verify.tasks.judge_batches import BatchSlice

VOTE: Final = pa.schema(
    [
        ("datanode_id", pa.string()),
        ("volume_id", pa.string()),
        ("against", pa.string()),
        ("is_lost", pa.bool_()),
    ]
)
"""One exposed replica. `against`: the version of all others, where it is another than the
replica's own, else empty."""


def votes(judgement: HealthJudgement, cut: BatchSlice, versions: Sequence[str]) -> pa.Table:
    """Return one row for each exposed replica. `versions` are those of the judge's nodes, in their
    order."""
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
    """Return for each voter the version of all others of its contest, where they have one that is
    not its own; else -1."""
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
