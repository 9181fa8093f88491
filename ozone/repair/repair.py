"""A repair of one replica: read it, compare it with its peers, write damaged chunks, read it again.

The datanode of the volume must be stopped. An operator confirms the plan before the writes. The
repair verifies all data against the rows of the replica, and never writes rows.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from agent.plan.actions import PeerId
from agent.reconcile.fetch import in_order
from merkle.damaged_data import DamagedData
from merkle.replica import TREE_STATES, ContainerId, ReplicaState
from ozone.clients.datanode import NO_SECURITY, Datanode, DatanodeAccess
from ozone.disk.database import ContainerDatabase
from ozone.disk.descriptor import DESCRIPTOR_BYTES_MAX, OzoneDescriptor, with_state
from ozone.disk.layout import ContainerPaths, OzoneVolume
from ozone.disk.rows import ContainerRows
from ozone.disk.small_files import read_descriptor, read_small
from ozone.disk.unsupported_format import UnsupportedFormat
from ozone.repair.datanode_liveness import check_stopped, has_lock
from ozone.repair.gathering import GatheredChunk, Gatherer
from ozone.repair.installation import Installer, clean
from ozone.repair.peer import DamagedBlocksPeer
from ozone.repair.peer_comparison import check_not_behind, lengths_of, tombstones_of
from ozone.repair.proposal import Proposal, RepairTarget, propose
from ozone.repair.replica_damage import InspectedReplica, read_replica
from ozone.scrub.reader import OzoneReader, identity_of
from ozone.scrub.scrub import ScrubOptions, database_of, find_volumes, state
from ozone.scrub.store import SCHEMA_SHARED
from suture.errors import BlockFailed, Code, RefusedError, SutureError, UnavailableError
from suture.runtime.clock import SystemClock

THREADS: Final = 8  # number of chunks in progress
FETCH_BYTES_MAX: Final = 64 * 1024**2
FAILURES_MAX: Final = 8  # consecutive failed writes after which the repair stops
FOLDER: Final = "repair"  # name of a directory in the state directory


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """The address of a peer, and its datanode id, which may be ""."""

    address: str
    datanode_id: str = ""

    @property
    def peer_id(self) -> PeerId:
        """Name of the peer in the output."""
        return self.address


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOptions:
    """The options of a repair.

    `is_stopped` is True if an operator confirms that the datanode is stopped. This is required if
    no lock can show that it is stopped.
    """

    data_dir: Path
    container_id: ContainerId
    peers: Sequence[PeerAddress]
    state_dir: Path
    database_dirs: Sequence[Path] = ()
    is_stopped: bool = False
    is_dry: bool = False
    access: DatanodeAccess = NO_SECURITY


class WriteResult(StrEnum):
    """The possible results of a repair for one damaged chunk."""

    REPAIRED = "REPAIRED"
    ASSEMBLED = "ASSEMBLED"  # assembled from windows of several replicas
    WHOLE_NOW = "WHOLE_NOW"  # the chunk was already correct
    LEFT = "LEFT"  # unchanged: no source has the data, or the write failed


@dataclass(frozen=True, slots=True)
class ChunkRepairOutcome:
    """The result of a repair for one chunk.

    If the chunk was not changed, `message` has the reason.
    """

    target: RepairTarget
    written: WriteResult
    sources: tuple[str, ...] = ()
    message: str = ""
    is_unknown: bool = False  # True for LEFT, if a peer that was not read may have the data


@contextmanager
def repairing(wish: RepairOptions) -> Iterator["OzoneRepair"]:
    """Open a volume, to repair one of its replicas in a `with` block.

    First finish an interrupted repair of the volume, unless this is a dry run. Raise SutureError or
    OSError if the volume cannot be opened.
    """
    scrub = ScrubOptions(data_dirs=[wish.data_dir], state_dir=wish.state_dir)
    (volume,) = find_volumes(scrub)
    with ExitStack() as stack:
        scratch = stack.enter_context(state(wish.state_dir / FOLDER))
        repair = OzoneRepair(wish, volume, scratch, stack)
        if not wish.is_dry:
            repair.recover()
        yield repair


class OzoneRepair:
    """The repair of one replica on a volume. `repairing` creates this object."""

    def __init__(
        self, wish: RepairOptions, volume: OzoneVolume, scratch: Path, stack: ExitStack
    ) -> None:
        self._wish = wish
        self._now_ms = SystemClock().now_ms
        self.volume = volume
        self.paths = volume.paths(wish.container_id)
        self.descriptor = _descriptor(self.paths)
        shared = database_of(volume, wish.database_dirs)
        is_shared = self.descriptor.schema == SCHEMA_SHARED
        self._database = shared if is_shared else self.paths.database
        self._databases = [shared, self.paths.database]
        self.check_stopped()
        if not (has_lock(shared) or wish.is_stopped):
            raise RefusedError(
                Code.INELIGIBLE,
                f"cannot detect whether the datanode is stopped: {volume.hdds} has no database "
                "that it keeps open",
                hint="give --stopped if the datanode of this host is stopped",
            )
        _check_may_write(self.paths)
        view = ContainerDatabase(self._database, scratch).view(0.0)
        self._rows = ContainerRows(view, wish.container_id, self.descriptor.schema)
        place = wish.state_dir / FOLDER / volume.storage_id
        self._installer = Installer(place, self._now_ms, self.check_stopped)
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="fetch")
        stack.callback(self._executor.shutdown, cancel_futures=True)
        self._datanodes: Mapping[PeerId, Datanode] = {
            peer.peer_id: stack.enter_context(
                Datanode(peer.address, peer.datanode_id, access=wish.access)
            )
            for peer in wish.peers
        }
        self._peers: dict[PeerId, DamagedBlocksPeer] = {}

    @property
    def quarantine(self) -> Path:
        """Path of the quarantine directory, which has the replaced data."""
        return self._installer.quarantine

    @property
    def peer_ids(self) -> list[PeerId]:
        """The ids of the peers, as given on the command line."""
        return list(self._datanodes)

    @property
    def unfinished_count(self) -> int:
        """Number of chunks whose write was not finished by an interrupted repair."""
        return len(self._installer.unfinished())

    @property
    def recovery_remarks(self) -> Sequence[str]:
        """Descriptions of the problems in the recovery from an interrupted repair."""
        return self._installer.remarks

    def check_stopped(self) -> None:
        """Raise RefusedError if a datanode has the volume open, and OSError if this is unknown."""
        check_stopped(self._databases)

    def recover(self) -> None:
        """Finish an interrupted repair, and remove its temporary files."""
        self._installer.recover(self._wish.container_id)
        clean(self.paths)

    def read(self, progress: Callable[[int], None]) -> InspectedReplica:
        """Read the complete replica, and return its damage.

        Raise SutureError or OSError if the replica cannot be read.
        """
        identity = identity_of(self.paths)
        reader = OzoneReader(self.paths, lambda _: self._rows, time.monotonic(), identity)
        try:
            return read_replica(reader, self._rows, self._now_ms, progress)
        finally:
            reader.close()

    def propose(self, replica: InspectedReplica) -> Proposal:
        """Request the trees of the peers, and return the planned writes."""
        container_id = self._wish.container_id
        self._peers = {
            peer_id: DamagedBlocksPeer(datanode, container_id, replica.blocks)
            for peer_id, datanode in self._datanodes.items()
        }
        return propose(container_id, replica, self._peers, self._executor)

    def execute(
        self, proposal: Proposal, progress: Callable[[int], None]
    ) -> Iterator[ChunkRepairOutcome]:
        """Write the chunks for which a source has the data, one by one.

        Yield the outcome of each chunk. If the write of a chunk fails, its outcome has the error.
        Raise SutureError if the repair must stop: a datanode was started, the volume failed, or
        several writes in a row failed. At least one peer must have answered.
        """
        assert not proposal.is_unknown
        known = {tree.peer_id for tree in proposal.peers if tree.is_known}
        peers = {peer_id: peer for peer_id, peer in self._peers.items() if peer_id in known}
        gatherer = Gatherer(
            self._wish.container_id, peers, self.paths.chunks, silent=proposal.silent_peers
        )
        failure_count = 0
        gathered = in_order(
            self._executor,
            iter(proposal.targets),
            gatherer.gather,
            lambda target: target.chunk.length_bytes,
            bytes_max=FETCH_BYTES_MAX,
            count_max=THREADS,
        )
        for target, got in gathered:
            outcome, error = self._install(target, got)
            failure_count = 0 if error is None else failure_count + 1
            yield outcome
            progress(target.chunk.length_bytes)
            if error is not None and failure_count >= FAILURES_MAX:
                raise error

    def _install(
        self, target: RepairTarget, got: GatheredChunk
    ) -> tuple[ChunkRepairOutcome, SutureError | None]:
        """Write one chunk. Return its outcome, and the error if a local operation failed."""
        if got.data is None:
            left = ChunkRepairOutcome(
                target, WriteResult.LEFT, message=got.message, is_unknown=got.is_unknown
            )
            return left, None
        try:
            is_new = self._installer.install(self.paths, target.block_id, target.chunk, got.data)
        except (RefusedError, UnavailableError, BlockFailed) as error:
            if error.code is Code.VOLUME_IN_USE:
                raise
            return ChunkRepairOutcome(target, WriteResult.LEFT, got.sources, str(error)), error
        if not is_new:
            return ChunkRepairOutcome(target, WriteResult.WHOLE_NOW), None
        is_whole = target.wanted is not None and len(got.sources) == 1
        written = (
            WriteResult.REPAIRED if is_whole or not target.has_checksums else WriteResult.ASSEMBLED
        )
        return ChunkRepairOutcome(target, written, got.sources), None

    def mark_closed(self, after: InspectedReplica) -> None:
        """Change the state in the descriptor of the replica to CLOSED.

        Raise SutureError if the replica is damaged, if it lacks data that a peer has, or if a peer
        does not answer.
        """
        if not after.is_whole:
            raise RefusedError(Code.INELIGIBLE, "cannot mark the replica closed: it is incomplete")
        container_id = self._wish.container_id
        lengths_bytes = lengths_of(self._rows, container_id)
        deleted = tombstones_of(self.paths)
        for peer_id, datanode in self._datanodes.items():
            check_not_behind(peer_id, datanode, container_id, lengths_bytes, deleted=deleted)
        data = read_small(self.paths.descriptor, DESCRIPTOR_BYTES_MAX)
        try:
            changed = with_state(data, ReplicaState.CLOSED)
        except DamagedData as damage:
            raise RefusedError(Code.INELIGIBLE, str(damage)) from damage
        self._installer.replace_descriptor(self.paths, changed)
        self.descriptor = _descriptor(self.paths)


def _descriptor(paths: ContainerPaths) -> OzoneDescriptor:
    """Return the descriptor of a replica.

    Raise RefusedError if the replica must not be repaired, and OSError if the descriptor cannot be
    read.
    """
    try:
        descriptor = read_descriptor(paths)
    except FileNotFoundError as error:
        raise RefusedError(
            Code.CONTAINER_NOT_FOUND,
            f"{paths.descriptor} does not exist",
            hint="Ozone copies the container from other datanodes, because it cannot load it",
        ) from error
    except (DamagedData, UnsupportedFormat) as why:
        raise RefusedError(Code.INELIGIBLE, str(why)) from why
    if descriptor.state not in TREE_STATES:
        raise RefusedError(
            Code.UNCLOSED_CONTAINER_IO,
            f"container {paths.container_id} is {descriptor.state}: it is still being written",
        )
    if descriptor.replica_index:
        raise RefusedError(
            Code.INELIGIBLE,
            f"container {paths.container_id} is shard {descriptor.replica_index} of an "
            "erasure-coded one: no peer has its bytes",
            hint="Ozone rebuilds it from the other shards when this replica is removed",
        )
    return descriptor


def _check_may_write(paths: ContainerPaths) -> None:
    """Raise RefusedError if this process cannot set the owner of new files.

    The owner must be that of the replica's directory. Raise OSError if the owner cannot be read.
    """
    owner = paths.root.stat().st_uid
    if os.geteuid() not in {0, owner}:
        raise RefusedError(
            Code.PERMISSION_DENIED,
            f"{paths.root} belongs to user {owner}",
            hint="run the command as that user or as root, so that files keep their owner",
        )
