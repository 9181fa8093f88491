"""What `suture scrub status` says of a datanode in one sentence."""

import pytest

from agent.cli.change.scrub import ask, headline
from suture.wire.v1 import datanode_pb2 as pb

GOOD, LATE = pb.VolumeScrub(state="scanning"), pb.VolumeScrub(state="scanning", lag_ms=1)
OFF = pb.VolumeScrub(state="off")


@pytest.mark.parametrize(
    ("volumes", "expected"),
    [
        ([GOOD, GOOD], "within 1 min: kept on all volumes;"),
        ([GOOD, LATE], "within 1 min: broken on 1 of 2 volumes;"),
        ([GOOD, OFF], "within 1 min: 1 volume not scanned; kept on the other volumes;"),
        ([LATE, OFF], "within 1 min: 1 volume not scanned; broken on 1 of 1 volumes;"),
        ([OFF, OFF], "no background scans"),
    ],
)
def test_the_promise_is_not_called_kept_where_nothing_is_scanned(
    volumes: list[pb.VolumeScrub], expected: str
) -> None:
    """A volume whose scan is off is named apart from the others."""
    assert expected in headline(pb.ScrubStatusResponse(volumes=volumes, interval_ms=60_000))


def test_scrubs_of_a_cluster_without_datanodes_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control plane may know no datanode yet."""
    monkeypatch.setattr("agent.cli.change.scrub.nodes_of", lambda *_: [])

    assert [] == ask("127.0.0.1:1", None, lambda peer: peer.scrub_status())
