"""suture history: what datanodes and orders tell, in one line of time."""

from agent.cli.inspect.change_log import changes_told, not_told, orders_told
from agent.cli.inspect.last_verified import verified_text
from suture.terminal.datanode_queries import DatanodeReply
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2

NOW_MS = 1_800_000_000_000


def changes(
    *at_ms: int, left_out: int = 0, unread: tuple[str, ...] = ()
) -> DatanodeReply[datanode_pb2.ListChangesResponse]:
    """Return the answer of a datanode with a change at each of these times."""
    answer = datanode_pb2.ListChangesResponse(left_out_count=left_out, unread_paths=unread)
    for one in at_ms:
        entry = datanode_pb2.HistoryEntry(
            at_ms=one,
            state=container_pb2.UNHEALTHY,
            finding_count=2,
            reason="damaged: 2 CHUNK_MISSING",
        )
        answer.changes.add(container_id=7, entry=entry)
    return DatanodeReply("dn-1", answer)


def test_a_change_says_when_where_and_what() -> None:
    """The facts are those of the datanode."""
    (line,) = changes_told([changes(5)])

    assert (5, "dn-1", 7, "UNHEALTHY", 2, "damaged: 2 CHUNK_MISSING") == (
        line.at_ms,
        line.datanode_id,
        line.container_id,
        line.state,
        line.finding_count,
        line.text,
    )


def test_orders_stand_beside_unless_they_touch_no_disk() -> None:
    """A delete is listed because it removes data. A message to a datanode is no change, and old
    commands are left out.
    """

    def outcome(kind: str, at_ms: int) -> scm_pb2.Outcome:
        status = scm_pb2.CommandStatus(
            type=kind, state=scm_pb2.CommandStatus.EXECUTED, container_id=3
        )
        return scm_pb2.Outcome(datanode_id="dn-2", status=status, reported_at_ms=at_ms)

    told = [outcome("delete", 10), outcome("set_operational_state", 11), outcome("delete", 4)]

    (line,) = orders_told(told, 5)

    assert (10, "dn-2", 3, "delete: executed") == (
        line.at_ms,
        line.datanode_id,
        line.container_id,
        line.text,
    )


def test_missing_parts_of_the_change_log_are_named() -> None:
    """A silent datanode, an unreadable volume and changes beyond the limit are named."""
    silent: DatanodeReply[datanode_pb2.ListChangesResponse] = DatanodeReply(
        "dn-9", None, "no route"
    )

    missing = list(not_told([silent, changes(1, left_out=3, unread=("/data/1",))]))

    assert [
        "dn-9: cannot be asked: no route",
        "dn-1: /data/1 cannot be read",
        "dn-1: 3 older changes left out",
    ] == missing


def container(*reads: int) -> scm_pb2.ContainerInfo:
    """Return a container with a replica read at each of these times."""
    info = scm_pb2.ContainerInfo()
    for i, at_ms in enumerate(reads):
        made = info.replicas.add()
        made.datanode.datanode_id = f"dn-{i}"
        made.replica.data_scan_at_ms = at_ms
    return info


def test_verified_text_has_the_newest_and_oldest_scan() -> None:
    """The text names datanodes that never scanned, and claims nothing if none did."""
    assert "no replica was read whole yet" == verified_text(container(0, 0))
    text = verified_text(container(0, 1_000, 2_000))
    assert text.startswith("last read whole: ")
    assert " on dn-2, the oldest " in text
    assert text.endswith(" on dn-1; never on dn-0")
