"""What `suture scrub status` says of a datanode in one sentence."""

import re

import pytest

from agent.cli.change.scrub import headline, print_passes, query_scrubs, total_pass
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

    assert [] == query_scrubs(None, lambda peer: peer.scrub_status())


def with_pass(path: str, began_at_ms: int, ended_at_ms: int, *numbers: int) -> pb.VolumeScrub:
    """Return a volume with a full pass: its bytes, findings, and resolved findings."""
    read_bytes, found_count, resolved_count = numbers
    one = pb.ScrubPass(
        began_at_ms=began_at_ms,
        ended_at_ms=ended_at_ms,
        read_bytes=read_bytes,
        found_count=found_count,
        resolved_count=resolved_count,
    )
    return pb.VolumeScrub(path=path, last_pass=one)


FIRST_PASS = with_pass("/data/1", 1_000_000, 4_600_000, 1024**3, 3, 2)
SECOND_PASS = with_pass("/data/2", 400_000, 2_200_000, 1024**3, 1, 0)


def test_pass_of_the_cluster_has_the_first_begin_the_last_end_and_the_sums() -> None:
    """A volume without a pass adds nothing. Without any pass there is no total."""
    total = total_pass([FIRST_PASS, GOOD, SECOND_PASS])

    assert total == with_pass("", 400_000, 4_600_000, 2 * 1024**3, 4, 2).last_pass
    assert total_pass([GOOD]) is None


def test_last_pass_of_each_volume_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The last line is the whole cluster. Without any pass nothing is printed."""
    print_passes([("dn-1", pb.ScrubStatusResponse(volumes=[GOOD]))])
    nothing = capsys.readouterr().out
    answers = [pb.ScrubStatusResponse(volumes=[one, GOOD]) for one in (FIRST_PASS, SECOND_PASS)]
    print_passes([("dn-1", answers[0]), ("dn-2", answers[1])])

    lines = [re.split(" {2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert "" == nothing
    assert ["dn-1", "/data/1", "1970-01-01 01:16:40", "1 h", "1.0 GiB", "3", "2"] in lines
    assert ["dn-2", "/data/2", "1970-01-01 00:36:40", "30 min", "1.0 GiB", "1", "0"] in lines
    rows = [line for line in lines if len(line) > 1]
    assert ["all", "2 volumes", "1970-01-01 01:16:40", "1 h 10 min", "2.0 GiB", "4", "2"] == rows[
        -1
    ]
