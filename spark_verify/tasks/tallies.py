"""What the judge's tasks count on their way: summed by the driver instead of by more Spark jobs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from health.departure import HELD_BY
from health.judge import Judgement
from health.root_comparison import why_not_compared
from health.segments import Groups, Ints
from health.words import ACTIONS, CLASSES, CONTAINER_STATES, INCOMPARABLE, UNKNOWN, Health
from spark_verify.input_columns import SAMPLE_MAX
from spark_verify.tasks.judge_batches import coded

VIOLATIONS_MAX: Final = 5
"""Contradictions of a snapshot that are named: enough to find the cause."""

Key = tuple[str, ...]


class Tallies:
    """Sums by kind and key; those of several tasks add up."""

    def __init__(self, sample_max: int = SAMPLE_MAX) -> None:
        self.sample_max = sample_max
        self._numbers: dict[tuple[str, Key], list[int]] = {}
        self._ids: dict[tuple[str, Key], list[int]] = {}

    def add(self, what: str, key: Key, numbers: Sequence[int], ids: Iterable[int] = ()) -> None:
        """Add numbers, and container ids of which the lowest are kept."""
        place = (what, key)
        before = self._numbers.setdefault(place, [0] * len(numbers))
        self._numbers[place] = [a + b for a, b in zip(before, numbers, strict=True)]
        self._ids[place] = sorted({*self._ids.get(place, ()), *ids})[: self.sample_max]

    def count_rows(self, *, containers: int, replicas: int, ops: int) -> None:
        """Count the rows that were read."""
        self.add("rows", (), (containers, replicas, ops))

    def twice(self, container_ids: Ints) -> None:
        """Keep the ids that stand in the table of containers more than once."""
        ids, counts = np.unique(container_ids, return_counts=True)
        if (counts > 1).any():
            self.add("twice", (), (int((counts > 1).sum()),), ids[counts > 1].tolist())

    def violations(self, wrong: Sequence[tuple[int, str]]) -> None:
        """Keep what cannot be, by container id."""
        for container_id, text in wrong[:VIOLATIONS_MAX]:
            self.add("violation", (text,), (1,), (container_id,))

    def count(self, judgement: Judgement) -> None:
        """Count one judged batch."""
        self._count_health(judgement)
        self._count_incomparable(judgement)
        self._count_plan(judgement)
        self._count_departures(judgement)

    def compare(self, judgement: Judgement, containers: pa.Table) -> None:
        """Count the containers whose state the control plane knew, and where it is another."""
        words, codes = coded(containers["health_state"])
        said = np.flatnonzero(codes != UNKNOWN)
        ids = containers["container_id"].to_numpy()[said]
        places = np.searchsorted(judgement.view.batch.containers.container_id, ids)
        states = judgement.verdicts.state[places]
        self.add("compared", (), (len(said),))
        meant = np.array([Health[word] for word in words.to_pylist()], dtype=np.int64)
        for row in np.flatnonzero(meant[codes[said]] != states).tolist():
            key = (words[codes[said[row]]].as_py(), Health(states[row]).name)
            self.add("disagreed", key, (1,), (int(ids[row]),))

    @property
    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not self._numbers

    def text(self) -> str:
        """Return everything as JSON: `what`, key, sums, and the lowest container ids that were
        counted, at most `sample_max`."""
        return json.dumps(
            [
                (what, key, numbers, self._ids[what, key])
                for (what, key), numbers in self._numbers.items()
            ]
        )

    def of(self, what: str) -> Mapping[Key, list[int]]:
        """Return the sums of one kind by key."""
        return {key: numbers for (kind, key), numbers in self._numbers.items() if kind == what}

    def ids(self, what: str, key: Key) -> list[int]:
        """Return the lowest container ids counted under a key."""
        return self._ids[what, key]

    def _count_health(self, judgement: Judgement) -> None:
        view, verdicts = judgement.view, judgement.verdicts
        containers = view.batch.containers
        columns = (
            containers.state,
            verdicts.state,
            verdicts.is_stuck,
            judgement.flags,
            judgement.compared.checksum_class,
            containers.is_known,
        )
        groups = Groups.of(*columns)
        ids = _lowest_ids(groups, containers.container_id, self.sample_max)
        for group, (first, count) in enumerate(
            zip(groups.first.tolist(), groups.tally().tolist(), strict=True)
        ):
            state, health, stuck, flags, checksum_class, known = (
                int(column[first]) for column in columns
            )
            word = "" if state == UNKNOWN else CONTAINER_STATES[state]
            key = (word, str(health), str(stuck), str(flags), CLASSES[checksum_class], str(known))
            self.add("health", key, (count,), ids[group] if flags else ())

    def _count_incomparable(self, judgement: Judgement) -> None:
        codes = why_not_compared(judgement.view, judgement.compared)
        containers = judgement.view.batch.containers
        for code, word in enumerate(INCOMPARABLE):
            own = containers.container_id[(codes == code) & containers.is_known]
            if len(own):
                self.add("incomparable", (word,), (len(own),), own[: self.sample_max].tolist())

    def _count_plan(self, judgement: Judgement) -> None:
        actions = judgement.actions
        for code, word in enumerate(ACTIONS):
            own = actions.action == code
            if own.any():
                total = int(actions.bytes_estimated[own].sum())
                self.add("plan", (word,), (int(own.sum()), total))

    def _count_departures(self, judgement: Judgement) -> None:
        leaving, view = judgement.departures, judgement.view
        nodes = view.batch.replicas.node[leaving.row]
        for node in np.unique(nodes).tolist():
            own = nodes == node
            held = [int((leaving.held[own] == place).sum()) for place in range(len(HELD_BY))]
            others = (leaving.is_in_progress[own].sum(), leaving.is_locked_out[own].sum())
            key = (view.batch.nodes.names[node],)
            self.add("leaving", key, (*held, *map(int, others)))


def collected(texts: Iterable[str], sample_max: int = SAMPLE_MAX) -> Tallies:
    """Return the sum of the tallies of several tasks, of each its `text`."""
    total = Tallies(sample_max)
    for text in texts:
        for what, key, numbers, ids in json.loads(text):
            total.add(what, tuple(key), numbers, ids)
    return total


def _lowest_ids(groups: Groups, ids: Ints, count: int) -> list[list[int]]:
    order = np.argsort(groups.of_row, kind="stable")
    ends = np.cumsum(groups.tally())
    return [
        ids[order[start : min(start + count, end)]].tolist()
        for start, end in zip([0, *ends[:-1]], ends, strict=True)
    ]
