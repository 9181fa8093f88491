"""A snapshot is asked for again while the control plane writes another one."""

import pytest

from suture.errors import Code, RefusedError, UnavailableError
from suture.wire.clients import scm
from suture.wire.clients.scm import ScmClient
from suture.wire.v1 import scm_pb2 as pb


def test_an_export_waits_for_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is notified once of the wait. A permanent refusal is final."""
    answers: list[Exception | pb.ExportSnapshotResponse] = [
        UnavailableError(Code.BUSY, "another export is running"),
        UnavailableError(Code.BUSY, "another export is running"),
        pb.ExportSnapshotResponse(path="/snapshots/7"),
        RefusedError(Code.MALFORMED_REQUEST, "no"),
    ]
    told: list[str] = []

    def call(*_: object, **__: object) -> pb.ExportSnapshotResponse:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(scm, "call", call)
    with ScmClient("127.0.0.1:9") as client:
        exported = client.export_snapshot(
            pb.ExportSnapshotRequest(), waits=lambda error: told.append(str(error))
        )
        with pytest.raises(RefusedError, match="no"):
            client.export_snapshot(pb.ExportSnapshotRequest())

    assert "/snapshots/7" == exported.path
    assert 1 == len(told)
    assert "another export" in told[0]
