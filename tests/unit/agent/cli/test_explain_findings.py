"""Findings in words, as `suture explain` and `suture scrub scan` print them."""

import pytest

from agent.cli.inspect.replica_commands import explain_findings
from suture.wire.v1 import datanode_pb2


@pytest.mark.parametrize(
    ("forensic", "expected"),
    [("TORN_512", "(CORRUPT, TORN_512)"), ("UNKNOWN", "(CORRUPT)"), ("", "(CORRUPT)")],
)
def test_the_kind_of_accident_is_said_where_it_is_known(
    forensic: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An older agent sends none."""
    finding = datanode_pb2.Finding(
        verdict="CORRUPT", fault="CHUNK_CHECKSUM", local_id=7, offset=0, length=9, forensic=forensic
    )

    explain_findings("dn-1", [finding])

    assert f"CHUNK_CHECKSUM {expected} in block 7, bytes 0 to 8" in capsys.readouterr().out
