"""Recovery after a restore: records the data that datanodes have and the backup does not contain.

The recovery has these steps:

- All known datanodes report all their replicas.
- The containers that were made after the backup are added to the state, with their keys.
- The deletes that were carried out after the backup are recorded.
- The recovery ends. All later ids are higher than any id that a datanode reported.

A record in the backup proves that the data was stored. A missing record proves nothing, so the
control plane never deletes data only because the state has no record of it. Only two facts override
a record:

- A proven delete: no datanode has a block of the key, and at least one datanode has the tombstone
  of the block. Only a control plane orders tombstones.
- A newer put of the same key.

If datanodes have two complete puts of one key, the older put is kept under another name, because it
is unknown whether the newer put was acknowledged to the client.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

import numpy as np
import structlog

from merkle.checksum_columns import container_checksum
from merkle.replica import ID_MAX
from scm.administration.older_states import MADE_SINCE_MAX, OlderStates
from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.cluster.lifecycle import end_writes
from scm.cluster.replica_map import ReportProcessor
from scm.cluster.safemode import SafeMode
from scm.containers.block_deletion import BlockDeletion
from scm.containers.state_updater import ContainerStateUpdater
from scm.state.audit_trail import AuditEntry
from scm.state.database import StateChange
from scm.state.entities import Container, ContainerState, Key, KeyBlock, replica_bytes
from scm.state.state_access import state_change
from scm.state.state_metadata import CONTAINER_GAP, RestoreRecord
from suture.ec.scheme import parse_scheme
from suture.errors import Code, UnavailableError
from suture.wire.mapping.bounds import KEY_BYTES_MAX

RECOVERED: Final = "RECOVERED"  # no key has that name
REPLACED: Final = "REPLACED"  # an older put has the name; the older put is renamed
KEPT_ASIDE: Final = "KEPT_ASIDE"  # a newer put has the name: this put gets another name
KNOWN: Final = "KNOWN"
DELETED: Final = "DELETED"  # this state has ordered its delete

LOCAL_ID_SEEN_MAX: Final = ID_MAX // 2  # a higher id leaves too few ids for future blocks

_WHY: Final = "it was made after the backup that the control plane was restored from"
_log = structlog.get_logger("suture.scm")


@dataclass(frozen=True, slots=True)
class InspectedContainer:
    """The facts about a container that `scm recover` read from all its datanodes."""

    container_id: int
    scheme: str
    deleted: frozenset[int]  # no datanode has the block, one has its tombstone


@dataclass(frozen=True, slots=True)
class RecoveredPut:
    """The result for one put: one version of a key whose blocks were found on datanodes.

    `kept_as` is the new name of the older put if two puts have the same key.
    """

    name: str
    code: str
    kept_as: str = ""


@dataclass(frozen=True, slots=True)
class RecoveryCall:
    """A part of the containers, deletes and puts that `scm recover` found on datanodes.

    `is_end` is True in the last part.
    """

    looked: Sequence[InspectedContainer]
    keys: Sequence[Key]
    last_local_id: int
    is_end: bool
    is_forced: bool


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """The results of one recovery call.

    `adopted` are the containers that were added to the state. `deleted` are the keys that were
    deleted, because their blocks were deleted after the backup. `brought` has the result for each
    put.
    """

    adopted: Sequence[int]
    deleted: Sequence[str]
    brought: Sequence[RecoveredPut]


class _DryRun(Exception):
    """Raised at the end of a dry run to roll back all its changes."""

    def __init__(self, made: RecoveryResult) -> None:
        super().__init__()
        self.made = made


@dataclass(frozen=True, slots=True)
class RecoveryBacklog:
    """The containers that the recovery must examine, and the datanodes that have not reported."""

    restored: RestoreRecord | None
    missing: tuple[str, ...]
    container_ids: tuple[int, ...]


@dataclass(eq=False)
class RestoreRecovery(ControlComponent):
    """Completes a restored state with the data that only datanodes have."""

    _reports: ReportProcessor
    _safe_mode: SafeMode
    _deletions: BlockDeletion
    _older_states: OlderStates
    _observer: ContainerStateUpdater

    def __post_init__(self, basis: DecisionContext) -> None:
        super().__post_init__(basis)
        self._factor = basis.options.replication_factor

    def recover(self, call: RecoveryCall, *, is_dry_run: bool) -> RecoveryResult:
        """Record a part of what `scm recover` found on datanodes.

        After the last part, the recovery ends, and the control plane sends commands for replicas
        again.
        """
        try:
            return self._recover(call, is_dry_run=is_dry_run)
        except _DryRun as dry_run:
            return dry_run.made

    @state_change
    def _recover(
        self, change: StateChange, call: RecoveryCall, *, is_dry_run: bool
    ) -> RecoveryResult:
        adopted = self._adopt(change, call.looked)
        deleted = self.finish_deletes(change, call.looked)
        made = RecoveryResult(adopted, deleted, self._bring_back(change, call.keys))
        if is_dry_run:
            raise _DryRun(made)
        needed = {block.container_id for key in call.keys for block in key.blocks}
        self._observer.update_containers(change, sorted(needed.union(adopted)))
        if call.is_end:
            self._finish(change, last_local_id=call.last_local_id, is_forced=call.is_forced)
        return made

    def to_recover(self, incomplete: Iterable[int]) -> RecoveryBacklog:
        """Return the containers that `scm recover` must examine.

        Callers must hold the control plane's lock.

        - Before the recovery ends, these are the containers that may have changed since the backup.
        - After the recovery, these are the containers that may be on datanodes which were missing
          then.
        - If the state was never restored, these are the containers that the state does not contain,
          and the containers in `incomplete`, which lack blocks that keys need. Normally there are
          none.

        The method scans all containers that keys need.
        """
        state, asked = self._state, {*self._reports.unknown_container_ids, *incomplete}
        missing = self._safe_mode.reevaluate().missing
        since = state.restored or state.recovered
        if since is not None:
            end_id = since.end_container_id or state.counters["next_container_id"]
            asked.update(since.unfinished, self._made_between(since, end_id))
        if state.restored is not None:
            needed = sorted(state.keys.last_bcsids().keys() - asked)
            owner, rows = state.replicas.owned(needed)
            buried = np.unique(owner[rows["tombstone_count"] > 0])
            asked.update(c for c in (needed[i] for i in buried) if self._has_other_deleted(c))
        ids = (c for c in asked if self._is_there(c))
        return RecoveryBacklog(
            state.restored, missing if state.restored else (), tuple(sorted(ids))
        )

    def _is_there(self, container_id: int) -> bool:
        """Return True if a container is in the state or on a datanode, and is not marked as lost.

        Otherwise, there is nothing to examine: the container was deleted or lost after the backup.
        """
        state = self._state
        if state.forgotten.get(container_id) is not None:
            return False
        is_made = state.containers.get(container_id) is not None
        return is_made or bool(state.replicas.of(container_id))

    def _may_be_ours(self, container_id: int) -> bool:
        """Return True if this control plane may have assigned this id after the backup."""
        return container_id < self._state.counters["next_container_id"] + MADE_SINCE_MAX

    def _made_between(self, since: RestoreRecord, end_id: int) -> list[int]:
        """Return the ids of the containers that were made after the backup and before `end_id`."""
        first_id = since.first_new_container_id
        made = self._state.containers.ids().tolist()
        return [number for number in made if first_id <= number < end_id]

    def _adopt(self, change: StateChange, looked: Iterable[InspectedContainer]) -> list[int]:
        """Add containers to the state that only datanodes have.

        Return the ids of the added containers.
        """
        adopted = []
        for one in looked:
            container = self._adopted(one)
            if container is not None:
                change.put(self._state.containers, container)
                self._reports.note_known(change, one.container_id)
                adopted.append(one.container_id)
                change.on_commit(_log.warning, "container_adopted", container_id=one.container_id)
        if self._state.restored is None:  # otherwise `_finish` moves the counter
            change.move_counter("next_container_id", max(adopted, default=0) + 1)
        return adopted

    def finish_deletes(
        self, change: StateChange, looked: Sequence[InspectedContainer]
    ) -> list[str]:
        """Delete the keys whose blocks were deleted on datanodes after the backup.

        Return their names, sorted. If datanodes still have blocks of these keys, the control plane
        orders to delete them again. The allocated commit id of each container is raised to its last
        commit id, because the lost state may have stored or deleted other blocks there.
        """
        for one in looked:
            container = self._state.containers.get(one.container_id)
            if container is not None and container.sequence_id > container.allocated_bcsid > 0:
                seen = replace(container, allocated_bcsid=container.sequence_id)
                change.put(self._state.containers, seen)
        gone = self._state.keys.named_among(
            [(one.container_id, local_id) for one in looked for local_id in one.deleted]
        )
        names = []
        for key in self._state.keys.values() if gone else ():
            if not gone.isdisjoint((block.container_id, block.local_id) for block in key.blocks):
                change.remove(self._state.keys, key.name)
                self._deletions.retire(change, [key])
                names.append(key.name)
        return sorted(names)

    def _bring_back(self, change: StateChange, found: Sequence[Key]) -> list[RecoveredPut]:
        """Record the puts that were found on datanodes. Return one result per put.

        If `found` has several puts of one name, the oldest must come first.
        """
        containers = {block.container_id for key in found for block in key.blocks}
        named = self._state.keys.named_among(
            [(block.container_id, block.local_id) for key in found for block in key.blocks]
        )
        deleted = {container_id: self._deleted_in(container_id) for container_id in containers}
        brought = []
        for key in found:
            code = self._rejection_reason(key, named, deleted)
            one = RecoveredPut(key.name, code) if code else self._bring(change, key)
            if not code:
                named.update((block.container_id, block.local_id) for block in key.blocks)
            brought.append(one)
        return brought

    def _finish(self, change: StateChange, *, last_local_id: int, is_forced: bool) -> None:
        """End the recovery, so that the control plane makes decisions again.

        Raise UnavailableError with the names of the known datanodes that have not reported, unless
        `is_forced`. Data that only these datanodes have is not recovered and remains on their
        disks. The counters of ids are raised, so that no id is assigned twice.
        """
        state = self._state
        state.keys.forget_named()
        if last_local_id <= LOCAL_ID_SEEN_MAX:
            change.move_counter("next_local_id", last_local_id + 1)
        if state.restored is None:
            return
        missing = self._safe_mode.reevaluate().missing
        if missing and not is_forced:
            raise UnavailableError(
                Code.SAFE_MODE,
                f"cannot finish the recovery: {', '.join(missing)} did not report all "
                "containers since the start",
                hint="start it and wait; --force continues without it, and recover can be run "
                "again",
            )
        seen = {
            number for number in self._reports.unknown_container_ids if self._may_be_ours(number)
        }
        seen.update(state.containers.ids().tolist())
        change.move_counter("next_container_id", max(seen, default=0) + 1 + CONTAINER_GAP)
        self._older_states.finish_recovery(change)
        change.end_restore()
        facts = {"who": "scm", "missing": list(missing), "forced": is_forced}
        change.add_audit_note(
            AuditEntry("restore finished", Code.SAFE_MODE if missing else "OK", facts)
        )
        change.on_commit(_log.warning, "restore_finished", count=len(missing))

    def _adopted(self, one: InspectedContainer) -> Container | None:
        """Return a new record for a container that the state lacks.

        Return None if the container is already known or cannot be added.
        """
        state, container_id = self._state, one.container_id
        replicas = state.replicas.of(container_id)
        is_known = state.containers.get(container_id) or state.forgotten.get(container_id)
        if is_known or not replicas or not self._may_be_ours(container_id):
            return None
        indexes = {replica.replica_index for replica in replicas}
        scheme = parse_scheme(one.scheme) if one.scheme else None
        if max(indexes) > (0 if scheme is None else scheme.shard_count):
            return None  # shards whose blocks name no erasure code
        opened = Container(
            container_id=container_id,
            state=ContainerState.OPEN,
            replication_factor=self._factor if scheme is None else scheme.shard_count,
            sequence_id=0,
            state_since_ms=self._clock.wall_ms(),
            pipeline=(),
            scheme=one.scheme,
        )
        return end_writes(opened, _WHY, now_ms=self._clock.wall_ms())

    def _rejection_reason(
        self,
        key: Key,
        named: Collection[tuple[int, int]],
        deleted: Mapping[int, Collection[int]],
    ) -> str:
        """Return the code why a put is not recorded.

        Return an empty string if it can be recorded.
        """
        places = [(block.container_id, block.local_id) for block in key.blocks]
        if any(self._state.containers.get(container_id) is None for container_id, _ in places):
            return Code.CONTAINER_NOT_FOUND
        if any(local_id in deleted[container_id] for container_id, local_id in places):
            return DELETED
        return KNOWN if any(place in named for place in places) else ""

    def _bring(self, change: StateChange, key: Key) -> RecoveredPut:
        """Record a put. If another put has the same name, rename the older of the two."""
        known = self._state.keys.get(key.name)
        for block in key.blocks:
            self._count(change, block)
        if known is None:
            change.put(self._state.keys, key)
            return RecoveredPut(key.name, RECOVERED)
        newer, older = (key, known) if _age(key) > _age(known) else (known, key)
        aside = replace(older, name=self._free_name(older))
        change.put(self._state.keys, aside)
        if newer is known:
            return RecoveredPut(key.name, KEPT_ASIDE, aside.name)
        change.put(self._state.keys, key)
        return RecoveredPut(key.name, REPLACED, aside.name)

    def _free_name(self, key: Key) -> str:
        """Return an unused name for the older of two puts with the same name.

        The new name is short enough for RPCs, even if the old name has the maximum length.
        """
        for number in count():
            suffix = f"~{_age(key)}" + (f".{number}" if number else "")
            room = KEY_BYTES_MAX - len(suffix)
            name = key.name.encode()[:room].decode(errors="ignore") + suffix
            if self._state.keys.get(name) is None:
                return name
        raise AssertionError("numbers have no end")

    def _count(self, change: StateChange, block: KeyBlock) -> None:
        container = self._state.containers.get(block.container_id)
        assert container is not None, "looked at before"
        stored_bytes = replica_bytes(container.scheme, block.length_bytes)
        counted = replace(
            container,
            committed_bytes=container.committed_bytes + stored_bytes,
            committed_count=container.committed_count + 1,
        )
        change.put(self._state.containers, counted)

    def _deleted_in(self, container_id: int) -> frozenset[int]:
        """Return the ids of the blocks of a container that this state has ordered to delete."""
        done = (deleted.local_ids for deleted in self._state.deleted_in(container_id))
        return self._deletions.being_deleted(container_id).union(*done)

    def _has_other_deleted(self, container_id: int) -> bool:
        """Return True if a replica has tombstones that this state does not explain.

        A tombstone is explained if this state has ordered the delete of its block.
        """
        trees = [replica.tree for replica in self._state.replicas.of(container_id)]
        buried = [tree for tree in trees if tree is not None and tree.tombstone_count]
        if not buried:
            return False
        known = np.array(sorted(self._deleted_in(container_id)), np.uint64)
        return any(
            tree.tombstones_checksum != container_checksum(tree.algorithm, known) for tree in buried
        )


def _age(key: Key) -> int:
    """Return the highest block id of a put.

    A newer put has a higher value, because block ids only grow.
    """
    return max((block.local_id for block in key.blocks), default=0)
