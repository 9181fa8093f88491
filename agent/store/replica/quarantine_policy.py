"""Storage of evidence about replicas in quarantine, and expiry of quarantined files."""

from collections.abc import Mapping, Sequence
from typing import Final

from agent.store.index.rows import InstallEntry
from agent.store.options import StoreOptions
from agent.store.replica import quarantine
from agent.store.replica.handle import ReplicaHandle
from agent.store.volumes.volume import Volume
from merkle.replica import BlockId

NO_BLOCK: Final = BlockId(0)  # for evidence about a replica as a whole; ids begin at 1


def keep_evidence(replica: ReplicaHandle, pieces: Mapping[str, bytes]) -> None:
    """Store evidence about a replica in the quarantine of its volume.

    The keys of `pieces` describe the pieces of evidence.
    """
    for number, (why, data) in enumerate(pieces.items()):
        note = quarantine.QuarantineEntry(
            replica.container_id, NO_BLOCK, number, len(data), replica.options.now_ms(), why
        )
        quarantine.quarantine_bytes(replica.volume.layout, note, data)


def purge_quarantine(volumes: Sequence[Volume], options: StoreOptions, older_than_s: float) -> int:
    """Remove copies in quarantine that are older than `older_than_s` seconds. Return their number.

    Keep copies that the journal needs.
    """
    before_ms = options.now_ms() - int(older_than_s * 1000)
    purged = 0
    for volume in volumes:
        with volume.index.read() as rows:
            in_use = frozenset(
                entry.quarantine for _, entry in rows.journal() if isinstance(entry, InstallEntry)
            )
        purged += quarantine.purge(volume.layout, before_ms=before_ms, in_use=in_use)
    return purged
