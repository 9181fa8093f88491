"""Paths on a volume of an Ozone datanode.

    <data dir>/hdds/VERSION                                      Java properties
    <data dir>/hdds/<cluster>/current/containerDir<N>/<id>/      metadata/<id>.container, <id>.tree
                                                                 chunks/<block id>.block
                                                                 metadata/<id>-dn-container.db (V2)
    <data dir>/hdds/<cluster>/tmp/deleted-containers/<id>/       moved here before it is removed
    <data dir>/hdds/<cluster>/<storage id>/container.db          one RocksDB a volume (schema V3)

This module does not write.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from merkle.replica import ID_MAX, ContainerId
from suture.errors import Code, RefusedError, VolumeFailed

VERSION_NAME: Final = "VERSION"
VERSION_BYTES_MAX: Final = 64 * 1024
HDDS: Final = "hdds"
STORAGE_TYPE: Final = re.compile(r"^\[\w+\](?=/|file:/)")
FILE_URI: Final = re.compile(r"^file:/+")
OF_CLUSTER: Final = "CID-"  # prefix of a cluster id; before SCM HA, the directory had the SCM's id
SUBFOLDERS: Final = 256  # containerDir0 .. containerDir255
DATABASE: Final = "container.db"


@dataclass(frozen=True, slots=True)
class OzoneVolume:
    """A volume of a datanode: one of the directories in `hdds.datanode.dir`."""

    hdds: Path
    cluster: Path
    storage_id: str
    cluster_id: str
    datanode_id: str

    @property
    def database(self) -> Path:
        """Path of the RocksDB of schema V3.

        If `hdds.datanode.container.db.dir` is set, another path is used instead.
        """
        return self.cluster / self.storage_id / DATABASE

    def deleted(self, container_id: ContainerId) -> Path:
        """Return the path to which Ozone moves a container that it deletes."""
        return self.cluster / "tmp" / "deleted-containers" / str(container_id)

    def paths(self, container_id: ContainerId) -> "ContainerPaths":
        """Return the paths of a container."""
        folder = f"containerDir{container_id >> 9 & SUBFOLDERS - 1}"
        return ContainerPaths(container_id, self.cluster / "current" / folder / str(container_id))


@dataclass(frozen=True, slots=True)
class ContainerPaths:
    """Paths of the files of one container."""

    container_id: ContainerId
    root: Path

    @property
    def descriptor(self) -> Path:
        """Path of the YAML descriptor file."""
        return self.root / "metadata" / f"{self.container_id}.container"

    @property
    def tree(self) -> Path:
        """Path of Ozone's tree file."""
        return self.root / "metadata" / f"{self.container_id}.tree"

    @property
    def chunks(self) -> Path:
        """Directory of the container's block files."""
        return self.root / "chunks"

    @property
    def database(self) -> Path:
        """Path of the container's own RocksDB, which only schema V2 has."""
        return self.root / "metadata" / f"{self.container_id}-dn-container.db"


def read_properties(text: str) -> Mapping[str, str]:
    """Return the entries of a simple Java properties file such as Ozone's VERSION."""
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith(("#", "!")))
    return {name.strip(): value.strip() for name, sign, value in pairs if sign}


def find_volume(data_dir: Path) -> OzoneVolume:
    """Return the volume at a data directory, or at the directory `hdds` below it.

    Raise RefusedError if there is no volume, or if its VERSION file is invalid. Raise OSError if
    the file cannot be read.
    """
    hdds = data_dir if (data_dir / VERSION_NAME).is_file() else data_dir / HDDS
    version = hdds / VERSION_NAME
    if not version.is_file():
        raise _no_volume(data_dir)
    with version.open("rb") as file:
        raw = file.read(VERSION_BYTES_MAX)
    fields = read_properties(raw.decode("utf-8", "replace"))
    missing = [name for name in ("storageID", "clusterID", "datanodeUuid") if not fields.get(name)]
    if missing:
        raise RefusedError(
            Code.INCONSISTENT_VOLUME, f"cannot read {version}: it lacks {', '.join(missing)}"
        )
    storage_id, cluster_id = fields["storageID"], fields["clusterID"]
    if any("/" in name or name in {".", ".."} for name in (storage_id, cluster_id)):
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"cannot read {version}: storageID or clusterID is not a valid name",
        )
    return OzoneVolume(
        hdds, _cluster(hdds, cluster_id), storage_id, cluster_id, fields["datanodeUuid"]
    )


def local_path(place: Path) -> Path:
    """Return the path in an entry of `hdds.datanode.dir` or `hdds.datanode.container.db.dir`.

    An entry may begin with a storage type, and may be a `file:` URI. Other paths are returned
    unchanged.
    """
    text = STORAGE_TYPE.sub("", str(place))
    path = FILE_URI.sub("/", text)  # the pattern has one slash, because pathlib merges several
    return Path(path if path == text else unquote(path))


def _no_volume(data_dir: Path) -> RefusedError:
    """Return the error for a missing volume. The usual cause is a disk that is not mounted."""
    hint = "name a directory of hdds.datanode.dir, as in the datanode's ozone-site.xml"
    lacks = f"it has no {HDDS}/{VERSION_NAME}"
    if data_dir.is_dir() and not any(data_dir.iterdir()):
        lacks, hint = f"it is empty: {lacks}", f"mount the disk, or {hint}"
    return RefusedError(
        Code.INCONSISTENT_VOLUME, f"cannot read volume {data_dir}: {lacks}", hint=hint
    )


def check_there(volume: OzoneVolume, *, held_containers: bool = True) -> None:
    """Raise VolumeFailed if the volume is no longer at its path.

    The cause is that its disk is not mounted, or that another disk is mounted there.
    `held_containers` is True if the volume has had containers. Their directory must then exist.
    Raise OSError if this cannot be determined.
    """
    try:
        is_there = find_volume(volume.hdds) == volume
    except RefusedError:
        is_there = False
    if not is_there or (held_containers and not (volume.cluster / "current").is_dir()):
        raise VolumeFailed(
            Code.IO_EXCEPTION,
            f"volume {volume.storage_id} is no longer at {volume.hdds}",
            hint="check the mount and the kernel log; earlier results are kept",
        )


def _cluster(hdds: Path, cluster_id: str) -> Path:
    """Return the directory of the cluster.

    This is the directory with the name of the cluster id, or else the only directory with
    containers.
    """
    named = hdds / cluster_id
    if (named / "current").is_dir():
        return named
    others = [path.parent for path in sorted(hdds.glob("*/current")) if path.is_dir()]
    if len(others) > 1:
        found = ", ".join(path.name for path in others)
        raise RefusedError(Code.INCONSISTENT_VOLUME, f"{hdds} holds several clusters: {found}")
    if not others:
        return named
    is_of_scm = cluster_id.startswith(OF_CLUSTER) and not others[0].name.startswith(OF_CLUSTER)
    if not is_of_scm:
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"{hdds}: {VERSION_NAME} names cluster {cluster_id}, and its containers are in "
            f"{others[0].name}",
            hint="was a disk of another cluster mounted, or VERSION copied?",
        )
    return others[0]


def container_ids(volume: OzoneVolume) -> Iterator[ContainerId]:
    """Yield the container ids that are names in the container directories, in any order.

    A name may belong to a file instead of a directory. Raise OSError if a directory cannot be
    listed.
    """
    for number in range(SUBFOLDERS):
        try:
            entries = os.scandir(volume.cluster / "current" / f"containerDir{number}")
        except (FileNotFoundError, NotADirectoryError):
            continue
        with entries:
            for entry in entries:
                container_id = number_of(entry.name)
                if container_id is not None:
                    yield ContainerId(container_id)


def number_of(text: str) -> int | None:
    """Return the id in a name, or None if the name is not an id.

    An id is a decimal number without leading zeros.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(ID_MAX))):
        return None
    if text[0] == "0" and len(text) > 1:
        return None
    number = int(text)
    return number if number <= ID_MAX else None
