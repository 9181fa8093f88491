"""Times at which the replicas of a container were last scanned completely."""

from suture.terminal.output import ago, short
from suture.wire.v1 import scm_pb2


def last_reads(info: scm_pb2.ContainerInfo) -> dict[str, int]:
    """Return the time of the last complete scan of each replica in milliseconds, by datanode id.

    The time is 0 if the replica was never scanned completely.
    """
    return {r.datanode.datanode_id: r.replica.data_scan_at_ms for r in info.replicas}


def verified_text(info: scm_pb2.ContainerInfo) -> str:
    """Return a text with the newest and the oldest complete scan of a container's replicas."""
    reads = last_reads(info)
    never = [short(node) for node, at_ms in reads.items() if not at_ms]
    known = sorted((at_ms, node) for node, at_ms in reads.items() if at_ms)
    if not known:
        return "no replica was read whole yet"
    (oldest_ms, oldest_on), (newest_ms, newest_on) = known[0], known[-1]
    text = f"last read whole: {ago(newest_ms)} on {short(newest_on)}"
    if len(known) > 1:
        text += f", the oldest {ago(oldest_ms)} on {short(oldest_on)}"
    return text + (f"; never on {', '.join(never)}" if never else "")
