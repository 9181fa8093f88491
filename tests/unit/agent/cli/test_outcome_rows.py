"""What became of a command, in one row."""

from agent.cli.inspect.scm_commands import outcome_row
from suture.wire.v1 import scm_pb2


def test_a_reconstruction_tells_what_it_read_and_left_out() -> None:
    """
    Block groups that too few shards know are named by their number; bytes read stand as fetched.
    """
    made = scm_pb2.ReconstructOutcome(bytes_read=3 * 1024**2, orphan_count=2)
    status = scm_pb2.CommandStatus(
        type="reconstruct",
        state=scm_pb2.CommandStatus.EXECUTED,
        container_id=5,
        reconstruct=made,
    )

    row = outcome_row(scm_pb2.Outcome(datanode_id="dn1", status=status))

    assert (5, "reconstruct", "EXECUTED", "3.0 MiB", "2 orphans left out") == (
        row[0],
        row[2],
        row[3],
        row[5],
        row[8],
    )
