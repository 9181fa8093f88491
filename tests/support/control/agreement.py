"""Compares the states that a control plane and the judge of its snapshot give each container."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from health.judge import diagnose
from health.rules import Rules
from health.words import HealthState
from scm.api.spark.snapshot_export import SnapshotExport
from spark_verify.tasks.judge_batches import cut_of, nodes_of

_NAMES: Final = {int(health): health.name for health in HealthState}


def told_and_judged(exported: SnapshotExport) -> tuple[dict[int, str | None], dict[int, str]]:
    """Return two dictionaries of health states by container id: the states in the snapshot, and
    those that the judge computes from the snapshot's tables."""
    containers, replicas, ops, nodes = (
        _read(exported, name) for name in ("containers", "replicas", "pending_ops", "nodes")
    )
    alive = {row["rack"] for row in nodes.to_pylist() if row["health"] != "DEAD"}
    batch = cut_of(containers, replicas, ops, nodes_of(nodes)).batch
    found = diagnose(batch, Rules(rack_count=len(alive)))
    own = containers["container_id"].to_pylist()
    ids = batch.containers.container_id
    states = found.verdicts.state[np.searchsorted(ids, own)].tolist()
    told = dict(zip(own, containers["health_state"].to_pylist(), strict=True))
    return told, dict(zip(own, map(_NAMES.__getitem__, states), strict=True))


def _read(exported: SnapshotExport, name: str) -> pa.Table:
    return pq.read_table(exported.path / name)


@dataclass
class Agreement:
    """The result of comparing the health states of the control plane and the judge many times."""

    compared: int = 0
    """Number of compared states: one per container and moment for which the control plane had a
    state."""
    unsaid: int = 0
    """Number of containers and moments without a state, because a fact changed since the last
    check."""
    states: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def compare(self, exported: SnapshotExport, when: str) -> None:
        """Compare the states in one snapshot, and add the result. `when` describes its moment."""
        told, judged = told_and_judged(exported)
        known = {number: word for number, word in told.items() if word is not None}
        self.compared += len(known)
        self.unsaid += len(told) - len(known)
        self.states.update(known.values())
        self.differences += [
            f"{when}: container {number} is {word}, {judged[number]} by the judge"
            for number, word in known.items()
            if judged[number] != word
        ]
