"""Tables with few indexes or none."""

from scm.state import records
from scm.state.entities import (
    Allocation,
    DeleteTransaction,
    ForgottenContainer,
    Hold,
    Key,
    Node,
    WorkControl,
)
from scm.state.table import PairTable, Table, id_key


class NodeTable(Table[str, Node]):
    """Registered datanodes by id."""

    def __init__(self) -> None:
        super().__init__(
            "nodes",
            key_bytes=str.encode,
            key_of=lambda node: node.datanode_id,
            rows=records.NODE,
        )


class AllocationTable(PairTable[Allocation]):
    """Blocks that are allocated to writers and not committed yet, by container and block."""

    def __init__(self) -> None:
        super().__init__(
            "allocations",
            key_of=lambda allocation: (allocation.container_id, allocation.local_id),
            rows=records.ALLOCATION,
        )


class TransactionTable(PairTable[DeleteTransaction]):
    """Delete transactions by container and transaction id, oldest first."""

    def __init__(self) -> None:
        super().__init__(
            "transactions",
            key_of=lambda transaction: (transaction.container_id, transaction.transaction_id),
            rows=records.TRANSACTION,
        )


class HoldTable(Table[tuple[int, str], Hold]):
    """Holds by container and datanode. An empty datanode id stands for the complete container."""

    def __init__(self) -> None:
        super().__init__(
            "holds",
            key_bytes=lambda key: id_key(key[0]) + key[1].encode(),
            key_of=lambda hold: (hold.container_id, hold.datanode_id),
            rows=records.HOLD,
        )

        self._by_container: dict[int, dict[str, Hold]] = {}

    def apply(self, key: tuple[int, str], value: Hold | None) -> Hold | None:
        """Set or remove a hold, and update the index. Return the earlier hold."""
        container_id, datanode_id = key
        self._mark_dirty(container_id)
        if value is not None:
            self._by_container.setdefault(container_id, {})[datanode_id] = value
        elif (held := self._by_container.get(container_id)) is not None:
            held.pop(datanode_id, None)
            if not held:
                del self._by_container[container_id]
        return super().apply(key, value)

    def of(self, container_id: int) -> list[Hold]:
        """Return the holds of a container and of its replicas."""
        return list(self._by_container.get(container_id, {}).values())

    def is_suppressed(self, container_id: int) -> bool:
        """Return True if commands for the complete container are stopped."""
        return (container_id, "") in self._rows


class SettingTable(Table[tuple[str, str, str], WorkControl]):
    """Run-time settings by kind of setting, kind of work, and rack."""

    def __init__(self) -> None:
        super().__init__(
            "settings",
            key_bytes=lambda key: "\0".join(key).encode(),
            key_of=lambda setting: (setting.control.value, setting.work.value, setting.rack),
            rows=records.SETTING,
        )


class ForgottenTable(Table[int, ForgottenContainer]):
    """Containers that an operator has marked as lost, by id."""

    def __init__(self) -> None:
        super().__init__(
            "forgotten",
            key_bytes=id_key,
            key_of=lambda forgotten: forgotten.container.container_id,
            rows=records.FORGOTTEN,
        )

    def lost_of(self, key: Key) -> list[int]:
        """Return the containers in which a key has blocks and that are marked as lost, sorted."""
        if not self._rows:
            return []
        return sorted({b.container_id for b in key.blocks if b.container_id in self._rows})
