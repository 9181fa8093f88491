"""Registry of a datanode's volumes: each volume lists all of them, so a missing one is detected.

The mount point of a missing disk is an empty directory, like a new disk. Therefore, the agent does
not format the path of a known volume that is now empty. The disk may return, and until then its
replicas would be written to the system disk.

The file is `<volume>/hdds/<cluster>/VOLUMES`. If the files differ because a volume was absent, the
file with the highest version is used.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agent.store.files.layout import VERSION_BYTES_MAX, VolumeLayout, decode_version
from agent.store.files.mounts import unmounted
from agent.store.index.lmdb_errors import DATA_FILE
from agent.store.volumes.sealed_file import read_sealed, sealed
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.durable import TEMPORARY_SUFFIX, disk_errors, read_head, replace_file

FILE_BYTES_MAX: Final = 1024**2
LOST_AND_FOUND: Final = "lost+found"  # directory of a new ext4 file system


@dataclass(frozen=True, slots=True)
class VolumeRegistry:
    """The list of the volumes of a datanode: the volume id at each path.

    `version` is 0 if no volume has a list. `added` has the paths that an operator added at run
    time, which the config may not have.
    """

    version: int = 0
    volumes: Mapping[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()

    def at(self, path: Path) -> str:
        """Return the id of the volume that was last seen at `path`, or "" if there was none."""
        return self.volumes.get(str(path.absolute()), "")


def newest_known(layouts: Sequence[VolumeLayout]) -> VolumeRegistry:
    """Return the registry with the highest version among the files of these volumes.

    Ignore files that are invalid or cannot be read. Raise the same errors as `read_sealed`.
    """
    known = [one for one in map(_read, layouts) if one is not None]
    return max(known, key=lambda one: one.version, default=VolumeRegistry())


def remember(
    layouts: Sequence[VolumeLayout],
    known: VolumeRegistry,
    volumes: Mapping[Path, str],
    *,
    added: Collection[str] = (),
) -> None:
    """Write the current list of volumes to every volume whose stored list differs."""
    named = {str(path.absolute()): volume_id for path, volume_id in sorted(volumes.items())}
    if named != known.volumes or tuple(sorted(added)) != known.added:
        known = VolumeRegistry(known.version + 1, named, tuple(sorted(added)))
    for layout in layouts:
        try:
            if _read(layout) != known:
                replace_file(layout.datanode_volumes_file, _encode(known))
        except SutureError:  # the volume check reports it; the other volumes have the list, too
            continue


def check_new(layout: VolumeLayout, expected: str, *, fstab: Path) -> None:
    """Raise `RefusedError(INCONSISTENT_VOLUME)` if a directory must not be formatted.

    This is the case if it has content, or may be the mount point of a missing disk. `expected` is
    the id of the volume that was at this path before, or "". An empty directory is then refused,
    too, unless an operator has created the file NEW.
    """
    beside = _beside(layout)
    if beside:
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"cannot format {layout.volume}: it is not a volume and contains {beside!r}",
            hint="mount the disk, or use an empty directory for a new volume",
        )
    foreign = _foreign(layout)
    if foreign:
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"cannot format {layout.hdds}: it has no VERSION and contains {foreign!r}",
            hint="restore VERSION, or empty the directory to format it",
        )
    mount = unmounted(layout.volume, fstab=fstab)
    if mount is not None:
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"cannot use volume {layout.volume}: {mount} of {fstab} is not mounted",
            hint=f"mount {mount}, then restart the agent",
        )
    if expected and not layout.new.is_file():
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"cannot use {layout.volume}: volume {expected} was there, and it is empty now",
            hint="mount the disk, then restart the agent; if this is a new disk: "
            f"suture volume add --next-start {layout.volume}, then restart the agent",
        )


def check_kept(layout: VolumeLayout) -> None:
    """Raise `RefusedError(INCONSISTENT_VOLUME)` if a formatted volume has no index and no replicas.

    The volume was in use before, because a newly formatted one has the file NEW until its index
    exists. An operator who creates the file NEW overrides this check.
    """
    if is_lost(layout) and not layout.new.is_file():
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"cannot use volume {layout.cluster}: its index and all replicas are missing",
            hint=f"put the directory back; if it is lost for good: suture volume add --next-start "
            f"{layout.volume}, then restart the agent",
        )


def is_lost(layout: VolumeLayout) -> bool:
    """Return whether the volume has neither an index nor any replica directory."""
    with disk_errors(layout.cluster):
        if os.path.lexists(layout.database / DATA_FILE):
            return False
        return not any(_names(group) for group in _names(layout.current))


def check_first_start(volumes: Sequence[Path], elsewhere: str) -> None:
    """Raise `RefusedError` if a datanode without data has earlier replicas at the SCM.

    The code of the error is INCONSISTENT_VOLUME. All volumes of the datanode are empty when this is
    called. `elsewhere` describes the SCM's records of earlier replicas, or is "". A file NEW on
    each volume overrides this check.
    """
    old = [
        path for path in volumes if not VolumeLayout(Path(os.path.realpath(path)), "").new.is_file()
    ]
    if elsewhere and old:
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            "cannot format the volumes of this host: the SCM has records of earlier ones: "
            f"{elsewhere}",
            hint="mount the disks, then start the agent; if they are new: "
            + " ".join(["suture volume add --next-start", *map(str, old)]),
        )


def declare_new(path: Path, *, fstab: Path) -> Path:
    """Mark an empty directory as a new disk, which the next start formats.

    Return the path of the file NEW. A volume that has lost its index and all replicas may be
    marked, too. It then starts empty with the same id. Raise `RefusedError(INCONSISTENT_VOLUME)` if
    the directory is neither empty nor such a volume.
    """
    layout = VolumeLayout(Path(os.path.realpath(path)), "")
    with disk_errors(path):
        if not layout.volume.is_dir():
            raise RefusedError(
                Code.INCONSISTENT_VOLUME, f"cannot use {path}: it is not a directory"
            )
        if os.path.lexists(layout.version):
            _check_lost(layout)
        else:
            check_new(layout, "", fstab=fstab)
        owner = layout.volume.stat()
        layout.hdds.mkdir(exist_ok=True, mode=0o750)
        os.chown(layout.hdds, owner.st_uid, owner.st_gid)
    replace_file(layout.new, b"new\n")
    with disk_errors(layout.new):
        os.chown(layout.new, owner.st_uid, owner.st_gid)
    return layout.new


def _names(directory: Path) -> list[Path]:
    """Return the entries of a directory, or an empty list if it does not exist."""
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _check_lost(layout: VolumeLayout) -> None:
    """Raise RefusedError unless the volume has lost its index and all replicas."""
    version = decode_version(read_head(layout.version, VERSION_BYTES_MAX), layout.version)
    if not is_lost(VolumeLayout(layout.volume, version.cluster_id)):
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"cannot declare a new disk: {layout.version} exists, so it is a volume",
            hint="start the agent; to reuse the disk for another volume, empty it first",
        )


def _beside(layout: VolumeLayout) -> str:
    """Return the name of an entry beside hdds/ that a new file system does not have, or "".

    Ignore hidden names, such as snapshots and quotas.
    """
    with disk_errors(layout.volume):
        names = sorted(path.name for path in _names(layout.volume))
    usual = {layout.hdds.name, LOST_AND_FOUND}
    return next((name for name in names if name not in usual and not name.startswith(".")), "")


def _foreign(layout: VolumeLayout) -> str:
    """Return the name of an entry in hdds/ that an interrupted format cannot have left, or ""."""
    files = (layout.new, layout.version)
    ours = {layout.lock.name, layout.new.name}
    ours |= {file.name + TEMPORARY_SUFFIX for file in files}
    with disk_errors(layout.hdds):
        try:
            names = sorted(entry.name for entry in layout.hdds.iterdir())
        except FileNotFoundError:
            return ""
    return next((name for name in names if name not in ours), "")


def _encode(known: VolumeRegistry) -> bytes:
    fields: dict[str, object] = {"version": known.version, "volumes": dict(known.volumes)}
    if known.added:
        fields["added"] = list(known.added)
    return sealed(fields)


def _read(layout: VolumeLayout) -> VolumeRegistry | None:
    fields = read_sealed(layout.datanode_volumes_file, FILE_BYTES_MAX)
    if fields is None:
        return None
    return VolumeRegistry(fields["version"], fields["volumes"], tuple(fields.get("added", ())))
