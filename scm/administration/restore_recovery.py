"""Recovery after a restore: records what datanodes have and the backup does not contain.

The recovery has these steps:

1. All known nodes report all their replicas.
2. Containers made since the backup are adopted, and their keys are brought back.
3. Deletes that were carried out since the backup are recorded.
4. The recovery ends; all later ids are higher than any id that was seen.

A record in the backup proves that the data was stored. A missing record proves nothing, so data is
never deleted because the state has no record of it. Only two facts override a record:

- A proven delete: no datanode has a block of the key, and at least one has its tombstone. Only a
  control plane orders tombstones.
- A newer put of the same key.

If there are two complete puts of one key, the older put is kept under another name, because it is
unknown whether the newer put was acknowledged.
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
    """A container as all its datanodes report it."""

    container_id: int
    scheme: str
    deleted: frozenset[int]  # no datanode has the block, one has its tombstone


@dataclass(frozen=True, slots=True)
class RecoveredPut:
    """Result of recording a stored file (one put of a key) that was found on datanodes. `kept_as`
    is the new name of the older of two puts of one key."""

    name: str
    code: str
    kept_as: str = ""


@dataclass(frozen=True, slots=True)
class RecoveryCall:
    """A portion of the containers, deletes and puts that `scm recover` found on datanodes. `is_end`
    marks the last portion."""

    looked: Sequence[InspectedContainer]
    keys: Sequence[Key]
    last_local_id: int
    is_end: bool
    is_forced: bool


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """Results of a recovery: adopted containers, keys whose delete was finished, and puts."""

    adopted: Sequence[int]
    deleted: Sequence[str]
    brought: Sequence[RecoveredPut]


class _DryRun(Exception):
    """Raised to end a change that is only a preview, so that the whole change is rolled back."""

    def __init__(self, made: RecoveryResult) -> None:
        super().__init__()
        self.made = made


@dataclass(frozen=True, slots=True)
class RecoveryBacklog:
    """The containers to examine and the nodes that have not reported yet."""

    restored: RestoreRecord | None
    missing: tuple[str, ...]
    container_ids: tuple[int, ...]


@dataclass(eq=False)
class RestoreRecovery(ControlComponent):
    """Recovers a restored state: records the data that datanodes have and the backup lacks."""

    _reports: ReportProcessor
    _safe_mode: SafeMode
    _deletions: BlockDeletion
    _older_states: OlderStates
    _observer: ContainerStateUpdater

    def __post_init__(self, basis: DecisionContext) -> None:
        super().__post_init__(basis)
        self._factor = basis.options.replication_factor

    def recover(self, call: RecoveryCall, *, is_dry_run: bool) -> RecoveryResult:
        """Apply a portion of a recovery's findings. After the last portion, the recovery ends and
        the control plane decides about replicas again."""
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
        """Return the containers to examine. The caller holds the lock. The method scans all
        containers that keys need.

        - Before the recovery ends: the containers that may have changed since the backup.
        - After the recovery: the containers that may be on datanodes which were missing during it.
        - If the state was never restored: the containers that the state does not know, and the
          `incomplete` containers, which lack blocks that keys need (normally there are none).
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
        """Return True if the state or a datanode has the container, and no operator gave it up.
        Otherwise there is nothing to examine, because the container was deleted or lost since the
        backup."""
        state = self._state
        if state.forgotten.get(container_id) is not None:
            return False
        is_made = state.containers.get(container_id) is not None
        return is_made or bool(state.replicas.of(container_id))

    def _may_be_ours(self, container_id: int) -> bool:
        """Return True if this control plane may have assigned this container id since the
        backup."""
        return container_id < self._state.counters["next_container_id"] + MADE_SINCE_MAX

    def _made_between(self, since: RestoreRecord, end_id: int) -> list[int]:
        """Return the containers that were made after the backup and before the recovery."""
        first_id = since.first_new_container_id
        made = self._state.containers.ids().tolist()
        return [number for number in made if first_id <= number < end_id]

    def _adopt(self, change: StateChange, looked: Iterable[InspectedContainer]) -> list[int]:
        """Record containers that datanodes have and the state lacks, because they were made after
        the backup. Return their ids."""
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
        """Delete keys whose blocks were deleted on datanodes after the backup; return their names,
        sorted.

        Blocks of these keys that are still on datanodes are deleted again. A later state may have
        stored or deleted other blocks in these containers. Therefore the allocated commit id of a
        container is raised to its last commit id.
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
        """Record the puts that were found on datanodes; return one outcome per put. If `found` has
        several puts of one name, the oldest must come first."""
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
        """End the recovery, so that decisions may begin. Raise UnavailableError if known nodes have
        not reported, unless forced; the error names the nodes. Data that only these nodes have is
        not recovered and remains on their disks.

        An outdated state that was not restored from a backup also gets new ids, so that no block id
        is assigned twice.
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
        """Return the record for a container that the state lacks; None if the container is already
        known or cannot be adopted."""
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
        """Return why a put is not recorded; an empty string if it is recorded."""
        places = [(block.container_id, block.local_id) for block in key.blocks]
        if any(self._state.containers.get(container_id) is None for container_id, _ in places):
            return Code.CONTAINER_NOT_FOUND
        if any(local_id in deleted[container_id] for container_id, local_id in places):
            return DELETED
        return KNOWN if any(place in named for place in places) else ""

    def _bring(self, change: StateChange, key: Key) -> RecoveredPut:
        """Record a put. If another put has its name, the newer of the two gets the name, and the
        older is renamed."""
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
        """Return an unused name for the older of two puts. It is short enough for RPCs even if the
        key's name has the maximum length."""
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
        """Return the blocks of a container whose delete this state has ordered."""
        done = (deleted.local_ids for deleted in self._state.deleted_in(container_id))
        return self._deletions.being_deleted(container_id).union(*done)

    def _has_other_deleted(self, container_id: int) -> bool:
        """Return True if a replica has tombstones of blocks whose delete this state has not
        ordered."""
        trees = [replica.tree for replica in self._state.replicas.of(container_id)]
        buried = [tree for tree in trees if tree is not None and tree.tombstone_count]
        if not buried:
            return False
        known = np.array(sorted(self._deleted_in(container_id)), np.uint64)
        return any(
            tree.tombstones_checksum != container_checksum(tree.algorithm, known) for tree in buried
        )


def _age(key: Key) -> int:
    """Return a sort key for the age of a put: its highest block id, because block ids only grow."""
    return max((block.local_id for block in key.blocks), default=0)
