"""Directory layout of a volume, and its VERSION file, which identifies the owner.

    <volume>/hdds/VERSION                                    layout, cluster, datanode, volume id
    <volume>/hdds/in_use.lock                                locked by the agent that uses it
    <volume>/hdds/NEW                                        an operator declares a new disk
    <volume>/hdds/<cluster>/current/containerDir<N>/<id>/    N = (id >> 9) & 0xFF, as in Ozone
        metadata/<id>.container  metadata/<id>.tree
        chunks/<block id>.block  chunks/small.pack
    <volume>/hdds/<cluster>/VOLUMES                          all volumes of the datanode
    <volume>/hdds/<cluster>/db/                              one LMDB environment
    <volume>/hdds/<cluster>/tmp/{importing,deleting}/        emptied at each start
    <volume>/hdds/<cluster>/tmp/probe/                       files that a volume check writes
    <volume>/hdds/<cluster>/canary/                          test fault that a scan must find
    <volume>/hdds/<cluster>/quarantine/                      bytes that a repair replaced
    <volume>/hdds/<cluster>/verification/                    log of verifications, repairs, deletes

This module only computes paths and encodes VERSION. It writes nothing.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from merkle.checksum import crc32c
from merkle.replica import ID_MAX, LAYOUT_VERSION, BlockId, ContainerId
from suture.errors import Code, RefusedError

QUARANTINE: Final = "quarantine"  # in the cluster's directory
VERIFICATION: Final = "verification"  # in the cluster's directory
PACK_NAME: Final = "small.pack"  # one file with many small blocks
VERSION_BYTES_MAX: Final = 65_536
SEAL: Final = "checksum"  # key of VERSION's last line: the CRC32C of the other lines
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_BLOCK_FILE: Final = re.compile(r"([1-9][0-9]{0,18})\.block")
_CONTAINER_DIRECTORY: Final = re.compile(r"[1-9][0-9]{0,18}")


def block_name(block_id: BlockId) -> str:
    """Return the file name of a block."""
    return f"{block_id}.block"


@dataclass(frozen=True, slots=True)
class ReplicaPaths:
    """Paths of one replica's files."""

    root: Path
    chunks: Path
    descriptor: Path
    tree: Path

    def block_file(self, block_id: BlockId) -> Path:
        """Return the path of a block's own file."""
        return self.chunks / block_name(block_id)

    @property
    def pack(self) -> Path:
        """Return the path of the pack file, which contains the replica's small blocks.

        It may not exist.
        """
        return self.chunks / PACK_NAME


@dataclass(frozen=True, slots=True)
class VolumeLayout:
    """Paths of one volume's directories."""

    volume: Path
    cluster_id: str

    @property
    def hdds(self) -> Path:
        """The agent's directory on the volume. The agent changes nothing outside this directory."""
        return self.volume / "hdds"

    @property
    def version(self) -> Path:
        """Path of the VERSION file, which identifies the owner of the volume."""
        return self.hdds / "VERSION"

    @property
    def lock(self) -> Path:
        """Path of the lock file. Only the process that holds the lock uses the volume."""
        return self.hdds / "in_use.lock"

    @property
    def new(self) -> Path:
        """Path of the file NEW, by which an operator declares the volume to be a new disk."""
        return self.hdds / "NEW"

    @property
    def cluster(self) -> Path:
        """Directory of all data of this cluster."""
        return self.hdds / self.cluster_id

    @property
    def current(self) -> Path:
        """Directory of the replicas."""
        return self.cluster / "current"

    @property
    def database(self) -> Path:
        """Directory of the LMDB environment."""
        return self.cluster / "db"

    @property
    def importing(self) -> Path:
        """Directory of replicas that are being imported."""
        return self.cluster / "tmp" / "importing"

    @property
    def deleting(self) -> Path:
        """Directory of the replicas that are being deleted."""
        return self.cluster / "tmp" / "deleting"

    @property
    def probes(self) -> Path:
        """Directory of the files that a volume check writes and removes."""
        return self.cluster / "tmp" / "probe"

    @property
    def ballast(self) -> Path:
        """Directory of reserve files, which the agent removes when the disk is full."""
        return self.cluster / "ballast"

    @property
    def canary(self) -> Path:
        """Directory of a private test store with a planted fault that a scan must find.

        The replicas in this store are never reported to the SCM.
        """
        return self.cluster / "canary"

    @property
    def quarantine(self) -> Path:
        """Directory of the old bytes that repairs replaced."""
        return self.cluster / QUARANTINE

    @property
    def verification(self) -> Path:
        """Directory of the verification log."""
        return self.cluster / VERIFICATION

    @property
    def datanode_volumes_file(self) -> Path:
        """Path of the file VOLUMES, which lists all volumes of the datanode."""
        return self.cluster / "VOLUMES"

    def remade_directories(self) -> tuple[Path, ...]:
        """Return the directories that the agent recreates at its start if they are missing.

        None of them contains data that the agent serves.
        """
        return (
            self.importing.parent,
            self.importing,
            self.deleting,
            self.probes,
            self.canary,
            self.quarantine,
            self.verification,
        )

    def remade_files(self) -> tuple[Path, ...]:
        """Return the files that the agent recreates at its start.

        None of them contains data that the agent serves. The volume's lock file is not included.
        """
        return (self.database / "lock.mdb", self.new, self.datanode_volumes_file)

    def directories(self) -> tuple[Path, ...]:
        """Return the directories that every volume must have."""
        return (self.current, self.database, self.importing, self.deleting, self.quarantine)

    def replica(self, container_id: ContainerId) -> ReplicaPaths:
        """Return the paths of one replica. The files may not exist."""
        root = self.current / group_name(container_id) / str(container_id)
        return replica_paths(root, container_id)


def group_name(container_id: ContainerId) -> str:
    """Return the name of the parent directory of a replica.

    512 consecutive container ids share one parent directory.
    """
    return f"containerDir{(container_id >> 9) & 0xFF}"


def replica_paths(root: Path, container_id: ContainerId) -> ReplicaPaths:
    """Return the paths of a replica whose directory is `root`."""
    metadata = root / "metadata"
    return ReplicaPaths(
        root=root,
        chunks=root / "chunks",
        descriptor=metadata / f"{container_id}.container",
        tree=metadata / f"{container_id}.tree",
    )


def block_id_of(name: str) -> BlockId | None:
    """Return the block id for a file name in chunks/.

    Return None if this is not the name of a block file.
    """
    match = _BLOCK_FILE.fullmatch(name)
    value = int(match[1]) if match else 0
    return BlockId(value) if 0 < value <= ID_MAX else None


def holds_data(name: str) -> bool:
    """Return True if a file name in chunks/ is the name of a block file or of a pack file."""
    return name == PACK_NAME or block_id_of(name) is not None


def container_id_of(name: str) -> ContainerId | None:
    """Return the container id for a directory name, or None if the name is not a container id."""
    value = int(name) if _CONTAINER_DIRECTORY.fullmatch(name) else 0
    return ContainerId(value) if 0 < value <= ID_MAX else None


@dataclass(frozen=True, slots=True)
class VolumeVersion:
    """Fields of the VERSION file, which uses the same keys as Ozone."""

    layout_version: int
    cluster_id: str
    datanode_id: str
    volume_id: str
    created_at_ms: int

    def encode(self) -> bytes:
        """Return the content of the VERSION file."""
        lines = (
            f"clusterID={self.cluster_id}",
            f"ctime={self.created_at_ms}",
            f"datanodeUuid={self.datanode_id}",
            f"layOutVersion={self.layout_version}",
            f"storageID={self.volume_id}",
        )
        body = ("\n".join(lines) + "\n").encode()
        return body + f"{SEAL}={crc32c(body):08x}\n".encode()


def decode_version(data: bytes, path: Path) -> VolumeVersion:
    """Parse the content of a VERSION file. `path` is only used in error messages.

    Raise `RefusedError(INCONSISTENT_VOLUME)` if the content is invalid. The message names the
    fault.
    """
    fields = {}
    for line in data.decode("utf-8", "replace").splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            fields[name.strip()] = value.strip()
    body, _, _ = data.partition(f"{SEAL}=".encode())
    if fields.get(SEAL, "") != f"{crc32c(body):08x}":
        said = fields.get(SEAL, "nothing")[:16]
        raise _damaged(path, f"its checksum is {crc32c(body):08x}, it says {said}")
    try:
        version = VolumeVersion(
            layout_version=int(fields["layOutVersion"]),
            cluster_id=fields["clusterID"],
            datanode_id=fields["datanodeUuid"],
            volume_id=fields["storageID"],
            created_at_ms=int(fields["ctime"]),
        )
    except (KeyError, ValueError) as error:
        raise _damaged(path, f"field missing or not a number: {error}") from error
    if version.layout_version != LAYOUT_VERSION:
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"cannot read {path}: it has layout version {version.layout_version}, this agent "
            f"supports {LAYOUT_VERSION}",
            hint="start the agent version that wrote the volume",
        )
    for name in (version.cluster_id, version.datanode_id, version.volume_id):
        if not _NAME.fullmatch(name):
            raise _damaged(path, f"{name[:200]!r} is no id")
    return version


def _damaged(path: Path, why: str) -> RefusedError:
    return RefusedError(
        Code.INCONSISTENT_VOLUME,
        f"{path}: {why}",
        hint="correct what is damaged, by the VERSION of another volume and the storageID in its "
        f"VOLUMES; leave out the line {SEAL}=; then restart the agent",
    )


def check_name(value: str, what: str) -> None:
    """Raise `RefusedError(INVALID_CONFIG)` if the id `value` has a character that is not allowed.

    A cluster or datanode id is used as a directory name, and as one line of VERSION. `what` is the
    name of the id for the error message.
    """
    if not _NAME.fullmatch(value):
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"{what} {value!r} must be 1 to 128 of letters, digits, '.', '_', '-'",
        )
