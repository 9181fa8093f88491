"""The control plane's state: tables in memory, and their rows in LMDB.

    with state.change() as change:
        change.put(state.nodes, node)
        change.remove(state.replicas, key)
        change.on_commit(tell)

A change is visible in memory at once, so its later steps see the earlier ones. At the end of the
block, one synced LMDB transaction makes the change durable, and then `tell` is called. If the
transaction fails, the memory is restored and `tell` is not called.

Reads never access the disk, except for outcomes and deleted blocks. Callers must hold the control
plane's lock. A lock file prevents a second process from opening the state.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, ParamSpec, Self, TypeVar

import lmdb
import numpy as np

from merkle.replica import ID_MAX
from scm.state import records, state_metadata
from scm.state.audit_trail import AuditEntry
from scm.state.clock import ScmClock
from scm.state.container_queues import ContainerBitmap, DirtyContainers
from scm.state.entities import CommandOutcome, DeletedBlocks, OpState
from scm.state.history.anchors import AnchorTable
from scm.state.history.history_tables import SampleTable, VerdictChangeTable, VerificationTable
from scm.state.replicas.arena import Rows
from scm.state.replicas.holders import Ids
from scm.state.replicas.replica_table import ReplicaTable
from scm.state.replicas.reported_replicas import ReportedReplicas
from scm.state.starts import LINEAGE, STARTS, Lineage
from scm.state.state_directory import (
    StateDirectoryLock,
    check_directory,
    lost_state,
    made_directory,
    make_durable,
    names_left,
    not_new,
    settle_cut_off,
    settle_start,
)
from scm.state.state_environment import DATA, StateEnvironment
from scm.state.state_metadata import (
    COUNTERS,
    RECOVERED,
    RESTORE_RECORD,
    RESTORED,
    RestoreRecord,
)
from scm.state.table import Table, id_key, rows_on_disk, without_collection
from scm.state.tables.container_table import ContainerTable
from scm.state.tables.key_table import KeyTable
from scm.state.tables.pending_table import PendingTable
from scm.state.tables.small_tables import (
    AllocationTable,
    ForgottenTable,
    HoldTable,
    NodeTable,
    SettingTable,
    TransactionTable,
)
from scm.state.tables.tables_on_disk import DeletedTable, OutcomeTable
from scm.state.writability import Writability, refusal_of
from suture.errors import Code, RefusedError

OUTCOMES_MAX: Final = 10_000  # enough for days of queries, small enough to keep
OUTCOMES_SLACK: Final = 256  # removed in batches of this size

K = TypeVar("K")
V = TypeVar("V")
Said = ParamSpec("Said")


class StateChange:
    """An atomic change of several tables and counters. `StateDatabase.change` begins a change."""

    def __init__(self, state: "StateDatabase") -> None:
        self._state = state
        self._undo: list[Callable[[], object]] = []
        self._told: list[Callable[[], object]] = []
        self.rows: dict[tuple[str, bytes], bytes | None] = {}
        self.notes: list[AuditEntry] = []  # for the audit log, after the change is durable

    def put(self, table: Table[K, V], value: V) -> None:
        """Set a value, in memory now and on disk when the change is committed."""
        key = self._apply(table, table.key_of(value), value)
        self.rows[(table.name, table.key_bytes(key))] = table.row(value)

    def set_volatile(self, table: Table[K, V], value: V) -> None:
        """Set a value in memory only. After a restart, the table has the value on disk again."""
        self._apply(table, table.key_of(value), value)

    def remove(self, table: Table[K, V], key: K) -> None:
        """Remove a value, in memory now and on disk when the change is committed."""
        self._apply(table, key, None)
        self.rows[(table.name, table.key_bytes(key))] = None

    def apply_report(self, table: ReplicaTable, there: Rows, told: ReportedReplicas) -> Ids:
        """Apply a datanode's report to the replica table.

        Return the ids of the containers that changed. The changed replicas are written to disk when
        the change is committed.
        """
        new, undo = table.apply_report(there, told)
        self._undo.append(undo)
        for key, row in table.disk_rows(told.datanode_id, new) if len(new) else ():
            self.rows[(table.name, key)] = row
        return new["container_id"]

    def remove_all(self, table: ReplicaTable, datanode_id: str, container_ids: Ids) -> Ids:
        """Remove a datanode's replicas of these containers.

        Return the ids of the containers of which the datanode had a replica.
        """
        removed, undo = table.remove_all(datanode_id, container_ids)
        self._undo.append(undo)
        for container_id in removed.tolist():
            self.rows[(table.name, table.key_bytes((container_id, datanode_id)))] = None
        return removed

    def next_id(self, counter: str) -> int:
        """Return the next number of `counter`. No number is returned twice, even after a crash."""
        number = self._state.counters[counter]
        assert 1 <= number <= ID_MAX, f"{counter} ran out"
        self._undo.append(lambda: self._state.counters.__setitem__(counter, number))
        self._state.counters[counter] = number + 1
        self.rows[("meta", counter.encode())] = records.pack([number + 1])
        return number

    def move_counter(self, counter: str, number: int) -> None:
        """Set the next number of `counter` to `number`, unless it is already higher."""
        before = self._state.counters[counter]
        if before < number <= ID_MAX:
            self._undo.append(lambda: self._state.counters.__setitem__(counter, before))
            self._state.counters[counter] = number
            self.rows[("meta", counter.encode())] = records.pack([number])

    def begin_restore(self, restored: RestoreRecord) -> None:
        """Mark this state as outdated, as if it was restored from a backup."""
        self._set_restore(restored, self._state.recovered)
        self.rows[("meta", RESTORED)] = RESTORE_RECORD.row(restored)

    def end_restore(self) -> None:
        """Mark a restored state as recovered.

        All ids that are assigned later are new. From now on, the state counts as containing
        everything that datanodes have seen in earlier terms.
        """
        state = self._state
        assert state.restored is not None, "there is a restore to end"
        end_id = state.counters["next_container_id"]
        recovered = replace(state.restored, end_container_id=end_id)
        self._set_restore(None, recovered)
        self.rows[("meta", RESTORED)] = None
        self.rows[("meta", RECOVERED)] = RESTORE_RECORD.row(recovered)
        lineage = state.lineage
        self._undo.append(lambda: setattr(state, "lineage", lineage))
        state.lineage = replace(lineage, floor_term=max(lineage.floor_term, state.term - 1))
        self.rows[("meta", STARTS)] = LINEAGE.row(state.lineage)

    def _set_restore(self, restored: RestoreRecord | None, recovered: RestoreRecord | None) -> None:
        state = self._state
        self._undo.append(partial(state.note_restore, state.restored, state.recovered))
        state.note_restore(restored, recovered)

    def add_audit_note(self, note: AuditEntry) -> None:
        """Add an entry to the audit log. The entry is written after this change is committed."""
        self.notes.append(note)

    def on_undo(self, action: Callable[[], object]) -> None:
        """Register a function that restores a value in memory.

        It is called if this change is rolled back.
        """
        self._undo.append(action)

    def on_commit(
        self, action: Callable[Said, object], *words: Said.args, **facts: Said.kwargs
    ) -> None:
        """Register a function and its arguments. It is called after this change is durable.

        Log events are registered this way, so that a failed change logs nothing.
        """
        self._told.append(partial(action, *words, **facts))

    def run_after_commit(self) -> None:
        """Call the functions registered with `on_commit`, in order."""
        for action in self._told:
            action()

    def undo(self) -> None:
        """Restore the memory to the state before this change."""
        while self._undo:
            self._undo.pop()()

    def _apply(self, table: Table[K, V], key: K, value: V | None) -> K:
        self._undo.append(table.swap(key, value))
        return key


class StateTables:
    """All tables of a state, without rows."""

    def __init__(self) -> None:
        self.nodes: Final = NodeTable()
        self.containers: Final = ContainerTable()
        self.replicas: Final = ReplicaTable()
        self.allocations: Final = AllocationTable()
        self.keys: Final = KeyTable()
        self.commands: Final = PendingTable()
        self.outcomes: Final = OutcomeTable()
        self.transactions: Final = TransactionTable()
        self.deleted: Final = DeletedTable()
        self.holds: Final = HoldTable()
        self.settings: Final = SettingTable()
        self.forgotten: Final = ForgottenTable()
        self.samples: Final = SampleTable()
        self.turns: Final = VerdictChangeTable()
        self.verifications: Final = VerificationTable()
        self.anchors: Final = AnchorTable()
        self.each_table: Final[tuple[Table[Any, Any], ...]] = tuple(vars(self).values())


class StateDatabase(StateTables):
    """The state of the control plane, in memory and on disk."""

    def __init__(self, environment: StateEnvironment, owner: "StateDirectoryLock") -> None:
        super().__init__()
        self._environment = environment
        self._owner = owner
        self._number_at_start = self.number
        self.counters: Final[dict[str, int]] = dict.fromkeys(COUNTERS, 1)
        self.cluster_id = ""
        self.lineage = Lineage()
        self.is_cold = False
        self.restored: RestoreRecord | None = None
        """The backup from which this state was restored.

        It is None after the state is recovered.
        """
        self.recovered: RestoreRecord | None = None
        """The backup from which this state was restored and recovered; None if there was none."""
        self.writability: Final = Writability()
        names = ("meta", *(table.name for table in self.each_table))
        environment.open_databases(names)
        self._databases: Final = environment.databases

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        map_bytes: int,
        is_cold: bool = False,
        is_new: bool = False,
        check: Callable[[Path], object] = lambda _path: None,
    ) -> Self:
        """Open or create the state in `directory`, and begin a new term.

        A cold start deletes the replica records, because datanodes report their replicas again. It
        keeps the records of datanodes in maintenance, which may not be able to report. It also
        deletes the commands, because they were based on the replicas. Every start with a restored
        state is a cold start until the state is recovered. `check` examines the files before
        another process can open them. `is_new` is True if an operator wants a new cluster in place
        of a lost state.

        Raise RefusedError(VOLUME_IN_USE) if another process uses the directory. Raise
        RefusedError(INCONSISTENT_VOLUME) if the state was lost, if other users may change it, or if
        it has rows that cannot be decoded. Raise RefusedError(INVALID_CONFIG) if `is_new` is True
        and the state is not lost.
        """
        missing = made_directory(directory)
        check_directory(directory.resolve())
        check_directory(directory / "state")
        left = names_left(directory)
        with ExitStack() as undo:
            owner = StateDirectoryLock.acquire(directory / "LOCK", is_first=not left)
            undo.callback(owner.release)
            try:
                settle_cut_off(directory)
                is_first = settle_start(directory, owner, left, is_new=is_new)
                check(directory / "state")
                environment = StateEnvironment(directory / "state", map_bytes)
                undo.callback(environment.close)
                state = cls(environment, owner)
                with without_collection():
                    if is_cold or state._is_restored():
                        state._forget()
                    state._load()
                if not state.cluster_id and not is_first:
                    why = f"{directory / 'state' / DATA} has no cluster in it"
                    raise lost_state(directory, why)
                if state.cluster_id and is_new:
                    raise not_new(directory, state.cluster_id)
                state._begin_term()
                if is_first:
                    owner.note_start(is_first=False)
            except (records.DamagedRow, lmdb.Error, OSError) as error:
                why = f"state in {directory}: {error}"
                raise RefusedError(Code.INCONSISTENT_VOLUME, why) from error
            undo.pop_all()
        make_durable(directory, missing)
        return state

    @property
    def term(self) -> int:
        """Return the term: the number of starts of a control plane on this state."""
        return self.counters["term"]

    @property
    def number(self) -> int:
        """Return the number of the last durable change. Each change increases the number by one."""
        return self._environment.number

    @contextmanager
    def change(self) -> Iterator[StateChange]:
        """Yield a change, and commit it at the end of the block. Roll it back after any exception.

        Raise UnavailableError with DISK_OUT_OF_SPACE or UNAVAILABLE if the change cannot be written
        now. Raise RefusedError(MALFORMED_REQUEST) if it can never be written.
        """
        change = StateChange(self)
        try:
            yield change
            self._commit(change)
        except BaseException:
            change.undo()
            raise
        change.run_after_commit()

    def settled(self) -> ContainerBitmap:
        """Return a new empty set of containers.

        When a container changes, the tables remove it from this set.
        """
        made = ContainerBitmap()
        for table in self.each_table:
            table.settled.append(made)
        return made

    def dirty_containers(self) -> DirtyContainers:
        """Return a new collector of containers.

        When a container changes, the tables add it to the collector.
        """
        made = DirtyContainers()
        for table in self.each_table:
            table.settled.append(made)
        return made

    def note_restore(self, restored: RestoreRecord | None, recovered: RestoreRecord | None) -> None:
        """Set the records of a restore in progress and of a recovered restore, in memory only."""
        self.restored, self.recovered = restored, recovered

    def mark_dirty(self, container_ids: Ids | Iterable[int]) -> None:
        """Mark containers as changed, although their rows have not changed.

        An example is a change of a datanode's health.
        """
        stirred = (
            container_ids
            if isinstance(container_ids, np.ndarray)
            else np.fromiter(container_ids, np.int64)
        )
        for settled in self.containers.settled:
            settled.discard_all(stirred)

    def outcome(self, command_id: int) -> CommandOutcome | None:
        """Read the outcome of a command from disk. Return None if there is none."""
        with self._environment.read() as transaction:
            database = self._databases[self.outcomes.name]
            row = transaction.get(self.outcomes.key_bytes(command_id), db=database)
        return None if row is None else self.outcomes.value(bytes(row))

    def has_all_commits_of(self, container_id: int) -> bool:
        """Return True if this state has every acknowledged commit of a container.

        The state may lack commits if it was restored from a backup and the container was made
        before the recovery ended.
        """
        if self.restored is not None:
            return False
        return self.recovered is None or container_id >= self.recovered.end_container_id

    def deleted_in(self, container_id: int) -> list[DeletedBlocks]:
        """Read the deleted blocks of a container from disk. The caller needs no lock."""
        prefix = id_key(container_id)
        found = []
        with self._environment.read() as transaction:
            cursor = transaction.cursor(self._databases[self.deleted.name])
            is_there = cursor.set_range(prefix)
            while is_there and cursor.key().startswith(prefix):
                found.append(self.deleted.value(bytes(cursor.value())))
                is_there = cursor.next()
        return found

    def close(self) -> None:
        """Close the files. No change is lost, because every change is already durable."""
        self._environment.close()
        self._owner.release()

    def _commit(self, change: StateChange) -> None:
        if not change.rows:
            return
        try:
            with self._environment.write() as transaction:
                for (name, key), row in change.rows.items():
                    if row is None:
                        transaction.delete(key, db=self._databases[name])
                    else:
                        transaction.put(key, row, db=self._databases[name])
        except lmdb.BadValsizeError as error:  # the row is invalid; the disk is not at fault
            name, key = max(change.rows, key=lambda row: len(row[1]))
            why = f"a name is too long to be kept: a key of {len(key)} bytes in table {name}"
            raise RefusedError(Code.MALFORMED_REQUEST, why) from error
        except (lmdb.Error, OSError) as error:
            refusal = refusal_of(error)
            self.writability.record_failure(str(refusal))
            raise refusal from error
        self.writability.succeeded()

    def _forget(self) -> None:
        """Delete the commands, and the replica records that datanodes can report again.

        Both are deleted in one transaction.
        """
        self.is_cold = True
        nodes, replicas = self._databases[self.nodes.name], self._databases[self.replicas.name]
        with self._environment.write() as transaction:
            resting = {
                node.datanode_id.encode()
                for _key, row in transaction.cursor(db=nodes)
                if (node := self.nodes.value(row)).op_state is OpState.IN_MAINTENANCE
            }
            kept = [
                (key, row)
                for key, row in transaction.cursor(db=replicas)
                if resting and self.replicas.node_of_key(key) in resting
            ]
            transaction.drop(replicas, delete=False)
            transaction.drop(self._databases[self.commands.name], delete=False)
            for key, row in kept:
                transaction.put(key, row, db=replicas)

    def _load(self) -> None:
        with self._environment.read() as transaction:
            self._load_meta(transaction)
            for table in self.each_table:
                table.load(*rows_on_disk(partial(transaction.cursor, self._databases[table.name])))

    def _load_meta(self, transaction: lmdb.Transaction) -> None:
        meta = self._databases["meta"]
        if transaction.get(b"format_version", db=meta) is None:
            return  # a new state
        found = state_metadata.read(partial(transaction.get, db=meta))
        self.cluster_id = found.cluster_id
        self.counters.update(found.counters)
        get = partial(transaction.get, db=meta)
        self.lineage = Lineage.read(get) or Lineage(self.counters["term"])
        rows = [transaction.get(key, db=meta) for key in (RESTORED, RECOVERED)]
        self.note_restore(
            *[None if row is None else RESTORE_RECORD.value(bytes(row)) for row in rows]
        )

    def _is_restored(self) -> bool:
        with self._environment.read() as transaction:
            return transaction.get(RESTORED, db=self._databases["meta"]) is not None

    def _begin_term(self) -> None:
        with self._environment.write() as transaction:
            put = partial(transaction.put, db=self._databases["meta"])
            if not self.cluster_id:
                self.cluster_id = f"CID-{uuid.uuid4()}"
                self.counters["term"] = 0
                put(b"cluster_id", records.pack([self.cluster_id]))
            put(b"format_version", records.pack([records.FORMAT_VERSION]))
            self.counters["term"] += 1
            for counter in COUNTERS:
                put(counter.encode(), records.pack([self.counters[counter]]))
            self.lineage = self.lineage.with_new_start(
                term=self.term,
                number=self._number_at_start,
                now_ms=ScmClock().wall_ms(),
                first_container_id=self.counters["next_container_id"],
            )
            put(STARTS, LINEAGE.row(self.lineage))
