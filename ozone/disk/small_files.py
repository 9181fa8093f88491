"""Reads complete small files of Ozone: descriptors and trees."""

import errno
import os
import stat
from pathlib import Path
from typing import Final

from merkle.damaged_data import DamagedData
from ozone.disk.descriptor import DESCRIPTOR_BYTES_MAX, OzoneDescriptor, decode_descriptor
from ozone.disk.layout import ContainerPaths
from suture.runtime.file_kinds import kind_at

NO_FILE: Final = frozenset({errno.ELOOP, errno.ENXIO})  # a circular link, a socket


def read_small(path: Path, bytes_max: int) -> bytes:
    """Return the content of a file.

    Raise DamagedData if it is not a regular file, or is longer than `bytes_max`. Raise OSError if
    it cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would block
    except OSError as error:
        if error.errno in NO_FILE or (error.errno == errno.ENOENT and path.is_symlink()):
            raise DamagedData(f"{kind_at(path)} is in the place of {path.name}") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DamagedData(f"{kind_at(path)} is in the place of {path.name}")
    with os.fdopen(fd, "rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise DamagedData(f"{path.name}: more than {bytes_max} bytes")
    return data


def read_descriptor(paths: ContainerPaths) -> OzoneDescriptor:
    """Return the descriptor of a container.

    Raise DamagedData if it is damaged, UnsupportedFormat if another release of Ozone wrote it, and
    OSError if it cannot be read.
    """
    data = read_small(paths.descriptor, DESCRIPTOR_BYTES_MAX)
    return decode_descriptor(data, paths.container_id)
