"""What a datanode is asked for a sample, and again while it draws another one."""

from collections.abc import Iterator

import pytest

from agent.cli.evidence.cluster_sample import last_of
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.wire.v1 import datanode_pb2 as pb


class ScriptedPeer:
    """A datanode that answers from a script."""

    address = "127.0.0.1:9"

    def __init__(self, *script: SutureError | pb.SampleProgress) -> None:
        self.script = list(script)

    def sample(self, _request: pb.SampleChunksRequest) -> Iterator[pb.SampleProgress]:
        """Give the next of the script."""
        step = self.script.pop(0)
        if isinstance(step, SutureError):
            raise step
        yield step


def test_a_datanode_that_draws_another_sample_is_asked_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The reason for the wait is on stderr, once."""
    busy = [UnavailableError(Code.BUSY, "another sample is being drawn here") for _ in range(2)]
    end = pb.SampleProgress(read_count=7, result=pb.SampleResult(read_count=7))
    peer, read = ScriptedPeer(*busy, end), list[int]()

    result = last_of(peer, pb.SampleChunksRequest(), read.append)  # type: ignore[arg-type]

    assert (7, [7]) == (result.read_count, read)
    assert 1 == capsys.readouterr().err.count("waiting for 127.0.0.1:9: another sample")


def test_another_refusal_is_final() -> None:
    """An invalid request stays invalid."""
    peer = ScriptedPeer(RefusedError(Code.MALFORMED_REQUEST, "no"))

    with pytest.raises(RefusedError, match="no"):
        last_of(peer, pb.SampleChunksRequest(), lambda _: None)  # type: ignore[arg-type]
