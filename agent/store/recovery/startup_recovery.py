"""Recovery of volumes at a start, before they are served.

The agent empties tmp/, finishes or rolls back the journal entries, and then loads every row and
every directory.

Unknown files are never deleted. The agent finishes a delete, an unlink or a repair only if the
journal or the state of the replica shows that this work had begun. A replica that cannot be loaded
is reported, and its files are not changed. (Ozone's datanode does not report such a replica.)
"""

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from agent.store.files.layout import container_id_of, group_name
from agent.store.index.facts import RecoveryStep, Unloadable
from agent.store.index.rows import (
    DescriptorEntry,
    InstallEntry,
    JournalEntry,
    MovingEntry,
    ReplicaRow,
    TreeEntry,
    UnlinkEntry,
)
from agent.store.index.transactions import IndexChange
from agent.store.operations.block_records import readable_block, record_chunk
from agent.store.operations.closing import follow_state
from agent.store.operations.deleting import finish_delete, record_tombstones, unlink_blocks
from agent.store.operations.overwrite import arrived, finish, roll_back
from agent.store.operations.replica_import import finish_move
from agent.store.options import StoreOptions
from agent.store.recovery.adoption import adopt_directories, lost_directory
from agent.store.replica.handle import ReplicaHandle
from agent.store.replica.quarantine import remove_cut_off
from agent.store.replica.states import FORMER_STATE, ReplicaEvent, next_state
from agent.store.replica.trees import read_tree
from agent.store.volumes.ballast import fill_ballast, with_ballast
from agent.store.volumes.directory_guard import linked
from agent.store.volumes.service_mode import VolumeMode, read_service
from agent.store.volumes.volume import Volume
from merkle.damaged_data import DamagedData
from merkle.replica import WRITABLE_STATES, ContainerId, ReplicaState
from suture.errors import Code, SutureError, VolumeFailed
from suture.runtime.durable import disk_errors, error_of, is_out_of_space, raise_shortage, remove

ADOPTED_MAX: Final = 500  # replicas without a row in one commit, which takes a second or two
RECOVERY_ERRORS: Final = (SutureError, OSError, DamagedData, ValueError, struct.error)


@dataclass(slots=True)
class StartupResult:
    """Result of the recovery at a start.

    The fields are the volume that serves each replica, the recovery steps, the replicas that are
    not served, the replicas that are left to be loaded in the background, and the failed volumes.
    """

    places: dict[ContainerId, Volume] = field(default_factory=dict)
    steps: list[RecoveryStep] = field(default_factory=list)
    unloadable: list[Unloadable] = field(default_factory=list)
    backlogs: dict[Volume, list[ContainerId]] = field(default_factory=dict)
    failed: list[tuple[Volume, SutureError]] = field(default_factory=list)

    def add_step(self, volume: Volume, container_id: ContainerId, what: str) -> None:
        """Record a recovery step for the report."""
        self.steps.append(RecoveryStep(volume.volume_id, container_id, what))

    def leave(self, volume: Volume, container_id: ContainerId, reason: str) -> None:
        """Record that a replica on this volume is not served, with the reason."""
        self.unloadable.append(Unloadable(container_id, volume.volume_id, reason))


def recover(
    volumes: list[Volume], options: StoreOptions, *, rebuilds_later: bool = False
) -> StartupResult:
    """Recover every volume. If a volume fails, add it to `failed` in the result.

    With `rebuilds_later`, do not load the replicas of a lost index, but add them to `backlogs`.
    Raise `UnavailableError(BUSY)` if the host is short of descriptors or memory.
    """
    shelf = StartupResult()
    for volume in volumes:
        try:
            with volume.index.read() as rows:
                rows.check_not_newer(volume.layout.volume)
            empty_temporary(volume, shelf)
            roll_journal(volume, options, shelf)
            left = load_volume(volume, options, shelf)
            if rebuilds_later and len(left) > ADOPTED_MAX:
                shelf.backlogs[volume] = left
            else:
                for start in range(0, len(left), ADOPTED_MAX):
                    load_directories(volume, options, left[start : start + ADOPTED_MAX], shelf)
            fill_ballast(volume.layout, options.reserve_bytes)
        except RECOVERY_ERRORS as error:
            failure = failure_of(error, volume)
            if failure.code is Code.BUSY:
                raise failure from error
            shelf.failed.append((volume, failure))
            shelf.backlogs.pop(volume, None)
            shelf.places = {
                container_id: place
                for container_id, place in shelf.places.items()
                if place is not volume
            }
    return shelf


def failure_of(error: Exception, volume: Volume) -> SutureError:
    """Return the SutureError for an error that stopped the recovery of this volume."""
    if isinstance(error, SutureError):
        return error
    if isinstance(error, OSError):
        return error_of(error, volume.layout.volume)
    return VolumeFailed(
        Code.UNABLE_TO_READ_METADATA_DB,
        f"{volume.layout.volume}: {type(error).__name__}: {error}",
        hint="run suture fsck on the volume",
    )


def empty_temporary(volume: Volume, shelf: StartupResult) -> None:
    """Remove the replicas in tmp/, which the last process was building or deleting.

    If an entry cannot be removed, report it and continue, because it only uses space.
    """
    for directory in (volume.layout.importing, volume.layout.deleting):
        with disk_errors(directory):
            left = list(directory.iterdir())
        for path in left:
            try:
                remove(path)
            except OSError as error:
                shelf.add_step(
                    volume, ContainerId(0), f"{path} cannot be removed: {error.strerror}"
                )
    remove_cut_off(volume.layout)


def roll_journal(volume: Volume, options: StoreOptions, shelf: StartupResult) -> None:
    """Finish or roll back the work in the journal.

    If this fails for an entry, report it and keep the entry in the journal.
    """
    with volume.index.read() as rows:
        entries = list(rows.journal())
    for container_id, entry in entries:
        if isinstance(entry, DamagedData):
            shelf.add_step(volume, container_id, f"journal entry left alone: {entry}")
            continue
        replica = ReplicaHandle(volume, options, container_id, options.on_trouble)
        try:
            what = with_ballast(
                volume.layout, options.reserve_bytes, partial(replay_entry, replica, entry)
            )
        except (SutureError, DamagedData, OSError) as error:
            raise_shortage(error, volume.layout.volume)
            if isinstance(error, SutureError) and error.code is Code.BUSY:
                raise
            what = f"{type(entry).__name__} left alone: {error}"
        shelf.add_step(volume, container_id, what)


def replay_entry(replica: ReplicaHandle, entry: JournalEntry) -> str:
    """Finish or roll back the work of one journal entry. Return a description of what was done."""
    match entry:
        case InstallEntry():
            return roll_install(replica, entry)
        case UnlinkEntry():
            left = unlink_blocks(replica)
            done = f"unlinked {len(entry.block_ids) - len(left)} deleted blocks"
            first = next(iter(left.values()), None)
            return done if first is None else f"{done}; {first}: left alone"
        case TreeEntry():
            return roll_tree(replica, entry)
        case MovingEntry():
            return finish_move(replica.volume, replica.container_id)
        case DescriptorEntry():
            follow_state(replica.volume, replica.container_id)
            return "descriptor rewritten"


def roll_install(replica: ReplicaHandle, entry: InstallEntry) -> str:
    """Finish an interrupted write if all its new bytes are on the disk.

    Otherwise, restore the old bytes. Return a description of what was done. In a batch, a chunk may
    be on the disk although the chunk before it is not. To record the later chunk would leave a
    hole. Therefore, it is rolled back, too.
    """
    container_id = replica.container_id
    where = f"block {entry.block_id}, chunk at {entry.chunk.offset}"
    if leaves_hole(replica, entry) or not arrived(replica.paths.block_file(entry.block_id), entry):
        roll_back(replica, entry)
        return f"{where}: interrupted write taken back"

    def record(rows: IndexChange) -> None:
        if not entry.pending:
            record_chunk(rows, container_id, entry.block_id, entry.chunk)
        elif rows.replica(container_id).state in WRITABLE_STATES:
            rows.put_pending(container_id, entry.block_id, entry.chunk)

    finish(replica, [entry], record)
    return f"{where}: interrupted write finished"


def leaves_hole(replica: ReplicaHandle, entry: InstallEntry) -> bool:
    """Return whether the chunk of a repair begins after the recorded end of its block."""
    if entry.pending:
        return False
    with replica.volume.index.read() as rows:
        block = readable_block(rows, replica.container_id, entry.block_id)
    return entry.chunk.offset > (block.length_bytes if block is not None else 0)


def roll_tree(replica: ReplicaHandle, entry: TreeEntry) -> str:
    """Record a tree whose file is in place although its commit is missing.

    The tree must be intact, belong to this container, and directly follow the generation of the
    replica row. The deletes of its tombstones were decided before the file was written. Therefore,
    the deletes are completed. The other findings of the scan are lost. Therefore, the replica is
    recorded as never scanned, and is scanned before others.

    Return a description of what was done.
    """
    container_id = replica.container_id
    tree = read_tree(replica.volume, container_id)

    def change(rows: IndexChange) -> bool:
        rows.end_work(container_id, entry)
        row = rows.replica(container_id)
        if tree is None or not entry.generation == tree.generation == row.generation + 1:
            return False
        known, dead = rows.tombstones(container_id), tree.tombstones()
        fresh = {block_id: dead[block_id] for block_id in dead if block_id not in known}
        if fresh:
            row = record_tombstones(rows, container_id, row, fresh, kept_ids=fresh)
        adopted = replace(row, generation=entry.generation, tree=tree.summary(), data_scan_at_ms=0)
        rows.put_replica(container_id, adopted)
        return True

    if not replica.volume.index.write(change):
        return f"tree of generation {entry.generation} was never put in place"
    unlink_blocks(replica)
    return f"tree of generation {entry.generation} adopted"


def load_volume(volume: Volume, options: StoreOptions, shelf: StartupResult) -> list[ContainerId]:
    """Load the replica of every row of a volume. Return the replicas that have a directory and no
    row. The caller loads these with `load_directories`."""
    directories = replica_directories(volume, shelf)
    with volume.index.read() as rows:
        known, damaged = rows.columns()
        finished = known.where(~known.are(UNFINISHED)).container_ids.tolist()
        usual = directories.intersection(finished)
        unusual = [i for i in known.container_ids.tolist() if i not in usual]
        unusual_rows = [(container_id, rows.replica(container_id)) for container_id in unusual]
    place_usual(volume, usual, shelf)
    directories.difference_update(usual, unusual)
    for container_id, row in unusual_rows:
        load = partial(load_unusual, volume, options, container_id, row, shelf)
        load_if_room(volume, options, container_id, shelf, load)
    for container_id, damage in damaged:
        if container_id not in directories:
            shelf.leave(volume, container_id, f"{damage}, and there is no directory")
    return sorted(directories)


def load_if_room(
    volume: Volume,
    options: StoreOptions,
    container_id: ContainerId,
    shelf: StartupResult,
    load: Callable[[], None],
) -> None:
    """Load a replica. Do not serve it until a later start if the disk is too full for this.

    The disk is too full if the call fails even after the ballast files (reserved space) were
    removed. Other replicas are served, because a full disk has not failed.
    """
    try:
        with_ballast(volume.layout, options.reserve_bytes, load)
    except (SutureError, OSError) as error:
        if not is_out_of_space(error):
            raise
        shelf.leave(volume, container_id, str(error))


def place_usual(volume: Volume, container_ids: set[ContainerId], shelf: StartupResult) -> None:
    """Serve these replicas from this volume.

    If another volume has the same container, `place` selects the volume that serves it.
    """
    twice = container_ids.intersection(shelf.places)
    shelf.places.update(dict.fromkeys(container_ids - twice, volume))
    for container_id in sorted(twice):
        place(volume, container_id, shelf)


UNFINISHED = frozenset({ReplicaState.RECOVERING, ReplicaState.DELETED})
"""States in which no replica remains after a start."""


def replica_directories(volume: Volume, shelf: StartupResult) -> set[ContainerId]:
    """Return the ids of the replicas that have a directory. Report directories at a wrong path.

    Only names are read, so that 100,000 replicas are listed quickly. Raise RefusedError if a
    symbolic link is in the place of a replica. The agent did not create the link, so the volume is
    not used.
    """
    found = set()
    with disk_errors(volume.layout.current):
        for group in list(volume.layout.current.iterdir()):
            if group.is_symlink():
                raise linked(group)
            name_of_group = group.name
            for name, is_link in entries_of(group):
                container_id = container_id_of(name)
                if is_link and container_id is not None:
                    raise linked(group / name)
                if container_id is None:
                    shelf.add_step(
                        volume, ContainerId(0), f"{group / name} is no replica; left alone"
                    )
                elif name_of_group != group_name(container_id):
                    shelf.leave(volume, container_id, f"{group / name} is not where it belongs")
                else:
                    found.add(container_id)
    return found


def entries_of(group: Path) -> Iterator[tuple[str, bool]]:
    """Yield (name, whether it is a symbolic link) for each entry of a directory.

    This makes no system call per entry.
    """
    if group.is_dir():
        with os.scandir(group) as entries:
            for entry in entries:
                yield entry.name, entry.is_symlink()


def load_unusual(
    volume: Volume,
    options: StoreOptions,
    container_id: ContainerId,
    row: ReplicaRow,
    shelf: StartupResult,
) -> None:
    """Load a replica that a crash left DELETED or RECOVERING, or whose directory is lost.

    Finish the delete of a DELETED replica. Delete an unfinished copy. Mark an unfinished
    reconstruction and a replica without a directory as UNHEALTHY.
    """
    match row.state:
        case ReplicaState.DELETED:
            left = finish_delete(volume, container_id)
            shelf.add_step(volume, container_id, left or "delete finished")
            return
        case ReplicaState.RECOVERING if row.replica_index == 0:
            # An unfinished copy of a replica that other datanodes have.
            set_state(volume, container_id, ReplicaEvent.DELETE_BEGAN)
            left = finish_delete(volume, container_id)
            shelf.add_step(volume, container_id, left or "unfinished copy deleted")
            return
        case ReplicaState.RECOVERING:
            set_state(volume, container_id, ReplicaEvent.EXPIRED)
            follow_state(volume, container_id)
            shelf.add_step(volume, container_id, "unfinished reconstruction is UNHEALTHY")
        case _:
            lost_directory(volume, options, container_id)
            shelf.add_step(volume, container_id, "directory is missing: UNHEALTHY")
    place(volume, container_id, shelf)


def load_directories(
    volume: Volume,
    options: StoreOptions,
    container_ids: Sequence[ContainerId],
    shelf: StartupResult,
) -> None:
    """Load replicas whose index rows are lost or damaged, from their descriptors and other files.

    If the disk is too full to load all of them together, load them one by one. Replicas for which
    there is no space are reported as not served.
    """
    adopt = partial(adopt_directories, volume, options, container_ids)
    try:
        told = with_ballast(volume.layout, options.reserve_bytes, adopt)
    except (SutureError, OSError) as error:
        if not is_out_of_space(error):
            raise
        if len(container_ids) == 1:
            shelf.leave(volume, container_ids[0], str(error))
            return
        for container_id in container_ids:
            load_directories(volume, options, [container_id], shelf)
        return
    for container_id, what in told.items():
        if isinstance(what, str):
            shelf.add_step(volume, container_id, what)
            place(volume, container_id, shelf)
        else:
            shelf.leave(volume, container_id, f"no row in the index, and no descriptor: {what}")


def set_state(volume: Volume, container_id: ContainerId, event: ReplicaEvent) -> None:
    """Apply `event` to the state of a replica durably. The caller writes the descriptor."""

    def change(rows: IndexChange) -> None:
        row = rows.replica(container_id)
        state = next_state(row.state, event, container_id)
        former = FORMER_STATE.get(row.state) if state is ReplicaState.UNHEALTHY else None
        rows.put_replica(container_id, replace(row, state=state, former_state=former))

    volume.index.write(change)


def place(volume: Volume, container_id: ContainerId, shelf: StartupResult) -> None:
    """Serve the replica from this volume.

    If another volume has the same container, serve the replica with the higher `rank`.
    """
    other = shelf.places.get(container_id)
    if other is None:
        shelf.places[container_id] = volume
        return
    better, worse = sorted((other, volume), key=lambda one: rank(one, container_id), reverse=True)
    shelf.places[container_id] = better
    if read_service(worse.layout).mode is VolumeMode.RETIRING:
        shelf.add_step(worse, container_id, f"its copy on {better.layout.volume} is served")
        return
    shelf.leave(
        worse,
        container_id,
        f"volume {better.layout.volume} has another replica of it, which is served",
    )


Rank: TypeAlias = tuple[bool, int, bool, int, bool]


def rank(volume: Volume, container_id: ContainerId) -> Rank:
    """Return a sort key to choose between two replicas of one container. The greater key is better.

    The key has, in this order: whether the replica is CLOSED, its BCSID, whether it is not
    UNHEALTHY, the number of its tombstones, and whether its volume is not retiring. More tombstones
    are better, because deleted blocks must not be restored.
    """
    with volume.index.read() as rows:
        row = rows.replica(container_id)
    return (
        row.state is ReplicaState.CLOSED,
        row.bcsid,
        row.state is not ReplicaState.UNHEALTHY,
        row.tree.tombstone_count if row.tree is not None else 0,
        read_service(volume.layout).mode is not VolumeMode.RETIRING,
    )
