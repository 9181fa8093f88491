"""Identity of this datanode, read from the VERSION files of its volumes."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.store.files.layout import VERSION_BYTES_MAX, VolumeLayout, VolumeVersion, decode_version
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.durable import error_of, raise_shortage, read_head


def read_versions(volumes: Sequence[Path]) -> Mapping[Path, VolumeVersion | SutureError | None]:
    """Return the content of the VERSION file of each volume.

    If the file cannot be read or is invalid, return the error instead. If there is no file, return
    None. Raise `UnavailableError(BUSY)` if the host is short of descriptors or memory.
    """
    return {path: _read_version(path) for path in volumes}


def _read_version(path: Path) -> VolumeVersion | SutureError | None:
    file = VolumeLayout(Path(os.path.realpath(path)), "").version
    try:
        return decode_version(read_head(file, VERSION_BYTES_MAX), file)
    except (FileNotFoundError, NotADirectoryError) as error:
        if not os.path.lexists(file):
            return None
        return RefusedError(Code.INCONSISTENT_VOLUME, f"{file} {error.strerror}")
    except OSError as error:
        raise_shortage(error, file)
        return error_of(error, file)
    except SutureError as error:
        return error


def is_of(version: VolumeVersion | SutureError | None, cluster_id: str, datanode_id: str) -> bool:
    """Return whether `version` names this cluster and this datanode."""
    return isinstance(version, VolumeVersion) and _names(version) == (cluster_id, datanode_id)


def remembered(volumes: Sequence[Path]) -> VolumeVersion | None:
    """Return a VERSION that names the cluster and datanode that most formatted volumes name.

    Return None if no volume is formatted. Raise RefusedError on a tie, because a disk of another
    host was inserted and it is unknown which one. If volumes exist but no VERSION can be read,
    raise the first error. Volumes that name another datanode are refused later, when they are
    opened.
    """
    found = read_versions(volumes)
    readable = {path: one for path, one in found.items() if isinstance(one, VolumeVersion)}
    if not readable:
        for error in found.values():
            if isinstance(error, SutureError):
                raise error
        return None
    votes = Counter((one.cluster_id, one.datanode_id) for one in readable.values()).most_common()
    if len(votes) > 1 and votes[0][1] == votes[1][1]:
        (one, other) = (
            next(path for path, version in readable.items() if _names(version) == names)
            for names, _ in votes[:2]
        )
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"cannot determine the datanode: {one} names {votes[0][0][1]} of {votes[0][0][0]}, "
            f"{other} names {votes[1][0][1]} of {votes[1][0][0]}, "
            "and equally many volumes name each",
            hint="check for a disk of another host, and remove it from storage.volumes",
        )
    return next(one for one in readable.values() if _names(one) == votes[0][0])


def _names(version: VolumeVersion) -> tuple[str, str]:
    return version.cluster_id, version.datanode_id
