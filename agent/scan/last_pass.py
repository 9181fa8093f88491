"""Last full pass of the scans over a volume, computed from the scan times of its replicas.

Background scans run continuously. Therefore, a pass is defined as the period from the oldest to the
newest of the replicas' last scan times, in which all replicas were read. The pass is not stored.
"""

from agent.store.operations.reading import finding_counts
from agent.store.replica_store import ReplicaStore
from agent.store.volumes.volume import Volume
from merkle.replica import TREE_STATES
from suture.errors import SutureError
from suture.wire.v1 import datanode_pb2 as pb


def last_pass(store: ReplicaStore, volume_id: str) -> pb.ScrubPass | None:
    """Return the last full pass of a volume: its times, bytes read, and numbers of findings.

    Return None if no replica was scanned, if the volume is not served, or if its disk fails.
    """
    try:
        for volume in store.volume_set.working:
            if volume.volume_id == volume_id:
                return _last_pass(store, volume)
    except SutureError:
        return None
    return None


def _last_pass(store: ReplicaStore, volume: Volume) -> pb.ScrubPass | None:
    [(_, replicas)] = store.columns(volume.volume_id)
    read = replicas.where(replicas.are(TREE_STATES) & (replicas.data_scan_at_ms > 0))
    if not len(read):
        return None
    began_at_ms = int(read.data_scan_at_ms.min())
    found_count, resolved_count = finding_counts(volume, since_ms=began_at_ms)
    return pb.ScrubPass(
        began_at_ms=began_at_ms,
        ended_at_ms=int(read.data_scan_at_ms.max()),
        read_bytes=int(read.used_bytes.sum()),
        found_count=found_count,
        resolved_count=resolved_count,
    )
