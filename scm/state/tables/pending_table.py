"""The table of pending commands, by id, datanode and container."""

from collections import Counter

from scm.state import records
from scm.state.entities import CommandKind, PendingCommand
from scm.state.table import Table, discard, id_key


class PendingTable(Table[int, PendingCommand]):
    """The commands that have not ended, by id, datanode and container."""

    def __init__(self) -> None:
        super().__init__(
            "commands",
            key_bytes=id_key,
            key_of=lambda pending: pending.command_id,
            rows=records.PENDING,
        )
        self._by_node: dict[str, dict[int, None]] = {}
        self._by_target: dict[tuple[CommandKind, int, str], int] = {}
        self.by_container: dict[int, set[int]] = {}
        """For each container, the ids of its commands."""
        self._adds: dict[str, set[int]] = {}
        self.kinds: Counter[CommandKind] = Counter()
        """Number of commands of each kind."""
        self.add_count = 0
        """Number of replicas that pending commands create in the cluster.

        A reconstruction counts once for each of its targets.
        """

    def apply(self, key: int, value: PendingCommand | None) -> PendingCommand | None:
        """Set or remove a command, and update the indexes. Return the earlier command."""
        before = super().apply(key, value)
        pending = value or before
        if pending is None:
            return None
        self._mark_dirty(pending.container_id)
        self.kinds[pending.kind] += (value is not None) - (before is not None)
        target = (pending.kind, pending.container_id, pending.subject_id)
        if value is not None:
            for node in _targets(value):
                adds = self._adds.setdefault(node, set())
                self.add_count += key not in adds
                adds.add(key)
            self._by_node.setdefault(value.datanode_id, {})[key] = None
            self._by_target[target] = key
            self.by_container.setdefault(value.container_id, set()).add(key)
        else:
            ids = self._by_node[pending.datanode_id]
            del ids[key]
            if not ids:
                del self._by_node[pending.datanode_id]
            self._by_target.pop(target, None)
            discard(self.by_container, pending.container_id, key)
            for node in _targets(pending):
                self.add_count -= key in self._adds.get(node, ())
                discard(self._adds, node, key)
        return before

    @property
    def delete_count(self) -> int:
        """Return the number of replicas that pending commands delete in the cluster."""
        return self.kinds[CommandKind.DELETE]

    def of_node(self, datanode_id: str) -> list[PendingCommand]:
        """Return the commands of a datanode, oldest first."""
        return [self._rows[key] for key in sorted(self._by_node.get(datanode_id, ()))]

    def count_of_node(self, datanode_id: str) -> int:
        """Return the number of pending commands of a datanode."""
        return len(self._by_node.get(datanode_id, ()))

    def adds_to(self, datanode_id: str) -> list[PendingCommand]:
        """Return the commands that create a replica on a datanode."""
        return [self._rows[key] for key in self._adds.get(datanode_id, ())]

    def about(
        self, kind: CommandKind, container_id: int, datanode_id: str
    ) -> PendingCommand | None:
        """Return the pending command of this kind for this replica.

        Return None if there is none.
        """
        key = self._by_target.get((kind, container_id, datanode_id))
        return None if key is None else self._rows[key]

    def has_any(self, container_id: int) -> bool:
        """Return True if any command for a container is pending."""
        return container_id in self.by_container

    def of_container(self, container_id: int) -> list[PendingCommand]:
        """Return the commands for a container, oldest first."""
        return [self._rows[key] for key in sorted(self.by_container.get(container_id, ()))]


def _targets(command: PendingCommand) -> tuple[str, ...]:
    """Return the datanodes on which a command creates a replica."""
    if command.kind is CommandKind.REPLICATE:
        return (command.target_id,)
    return tuple(dict.fromkeys(node for _index, node in command.shards))
