"""Who this datanode is, as its volumes remember it."""

from collections.abc import Sequence
from pathlib import Path

from agent.errors import Code, Refused
from agent.store.durable import disk_errors, read_file
from agent.store.layout import Layout, VolumeVersion, decode_version


def remembered(volumes: Sequence[Path]) -> VolumeVersion | None:
    """Return what the formatted volumes say of cluster and datanode; None if none is formatted.

    Refuses volumes that contradict each other: a disk of another host was put in, and mixing its
    replicas with ours would report them twice.
    """
    found: VolumeVersion | None = None
    for path in volumes:
        file = Layout(path.resolve(), "").version
        with disk_errors(file):
            try:
                data = read_file(file)
            except FileNotFoundError:
                continue
        version = decode_version(data, file)
        if found is None:
            found = version
        elif (found.cluster_id, found.datanode_id) != (version.cluster_id, version.datanode_id):
            raise Refused(
                Code.INCONSISTENT_VOLUME,
                f"{file}: datanode {version.datanode_id} of cluster {version.cluster_id}, while "
                f"another volume says {found.datanode_id} of {found.cluster_id}",
                hint="was a disk of another host put in?",
            )
    return found
