"""The table of containers, of which there are millions."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from scm.state import records
from scm.state.entities import Container, ContainerState
from scm.state.table import Table, discard, id_key
from scm.state.tables.wanted_counts import WantedCounts


class ContainerTable(Table[int, Container]):
    """Containers by id. Open containers are also indexed by their writer's session.

    Most containers are closed and do not change for months. Such a container remains an undecoded
    row until it is requested, because at a start, decoding takes longer than reading.
    """

    def __init__(self) -> None:
        super().__init__(
            "containers",
            key_bytes=id_key,
            key_of=lambda container: container.container_id,
            rows=records.CONTAINER,
        )
        self._stored = cast("dict[int, Container | bytes]", self._rows)
        self._open_by_client: dict[str, set[int]] = {}
        self.closing: set[int] = set()
        self.states: Counter[ContainerState] = Counter()
        """Number of containers in each state."""
        self.touched: set[int] = set()
        """Containers that have changed since `scm.api.health_totals` last cleared this set."""
        self.wanted = WantedCounts()

    def _load_rows(self, rows: Sequence[bytes]) -> None:
        found = records.at_rest(rows)
        is_other = np.ones(len(rows), np.bool_)
        is_other[found.places] = False
        others = np.flatnonzero(is_other).tolist()
        ids = np.zeros(len(rows), np.int64)
        ids[found.places] = found.ids
        self.wanted.set_all(ids[found.places], np.array(found.replica_counts, np.int64))
        stored: list[Container | bytes] = list(rows)
        decoded = records.containers_from([rows[place] for place in others])
        for place, value in zip(others, decoded, strict=True):
            ids[place], stored[place] = value.container_id, value
            self.states[value.state] += 1
            self._index(value)
            self.wanted.update(value.container_id, value)
        self.states[ContainerState.CLOSED] += len(found.ids)
        self._stored.update(zip(ids.tolist(), stored, strict=True))

    def get(self, key: int) -> Container | None:
        """Return a container. Return None if it does not exist.

        The first call for a container decodes its row.
        """
        found = self._stored.get(key)
        if isinstance(found, bytes):
            found = self._stored[key] = self.value(found)
        return found

    def promised_counts(self, container_ids: Sequence[int]) -> list[int]:
        """Return the number of blocks that were ever allocated in each of these containers.

        The number is 0 if the container does not exist. The rows remain undecoded.
        """
        found = [self._stored.get(number) for number in container_ids]
        counts = iter(records.promised_counts([one for one in found if isinstance(one, bytes)]))
        return [
            next(counts) if isinstance(one, bytes) else one.allocated_bcsid if one else 0
            for one in found
        ]

    def values(self) -> list[Container]:
        """Return a snapshot of all containers."""
        stored = list(self._stored.values())
        made = iter(records.containers_from([one for one in stored if isinstance(one, bytes)]))
        return [next(made) if isinstance(one, bytes) else one for one in stored]

    def apply(self, key: int, value: Container | None) -> Container | None:
        """Set or remove a container, and update the indexes. Return the earlier container."""
        self.touched.add(key)
        before = self.get(key)
        super().apply(key, value)
        self._mark_dirty(key)
        if before is not None:
            self.states[before.state] -= 1
        if value is not None:
            self.states[value.state] += 1
        if before is not None and before.state is ContainerState.OPEN:
            discard(self._open_by_client, before.client_id, key)
        self.closing.discard(key)
        if value is not None:
            self._index(value)
        self.wanted.update(key, value)
        return before

    def _index(self, value: Container) -> None:
        if value.state is ContainerState.OPEN:
            self._open_by_client.setdefault(value.client_id, set()).add(value.container_id)
        elif value.state in {ContainerState.CLOSING, ContainerState.QUASI_CLOSED}:
            self.closing.add(value.container_id)

    def ids(self) -> NDArray[np.int64]:
        """Return the ids of all containers."""
        return np.fromiter(self._rows, np.int64, len(self._rows))

    def missing(self, container_ids: Iterable[int]) -> list[int]:
        """Return the ids in `container_ids` for which there is no container."""
        known = self._rows
        return [number for number in container_ids if number not in known]

    def at_rest(self, container_ids: Iterable[int]) -> list[int]:
        """Return the ids in `container_ids` of closed containers with an empty pipeline.

        The pipeline lists the chosen datanodes that have not reported their replica yet.
        """
        get, closed = self._stored.get, ContainerState.CLOSED
        return [
            number
            for number in container_ids
            if isinstance(found := get(number), bytes)
            or (found is not None and found.state is closed and not found.pipeline)
        ]

    def not_closed(self) -> list[Container]:
        """Return all containers that are not closed."""
        closed = ContainerState.CLOSED
        found = (one for one in self._stored.values() if not isinstance(one, bytes))
        return [one for one in found if one.state is not closed]

    def open_of(self, client_id: str) -> list[Container]:
        """Return the open containers of a writer's session, oldest first."""
        return [self._rows[key] for key in sorted(self._open_by_client.get(client_id, ()))]

    def open_all(self) -> list[Container]:
        """Return all open containers."""
        return [self._rows[key] for keys in self._open_by_client.values() for key in keys]
