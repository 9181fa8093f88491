"""A put when all of its keys are committed, and the control plane does not hear that it ends."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.cli.main import run
from suture.client import cluster_client as client_module
from suture.client import writer
from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import SourceFile
from suture.client.writer import StoredFile, WriterSession
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.exit_codes import ExitCode
from suture.wire.clients.scm import ScmClient

NOBODY = "127.0.0.1:9"
AWAY = UnavailableError(Code.UNAVAILABLE, "the SCM is away")
FORBIDDEN = RefusedError(Code.PERMISSION_DENIED, "this role ends no session")


def stored_at_once(
    _session: WriterSession, share: list[SourceFile], _replace: bool, stored: list[StoredFile]
) -> None:
    """Store a share, as far as the put can tell."""
    stored += [StoredFile(source.key, source.size_bytes, (), 3) for source in share]


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[[SutureError], None]:
    """Return what says how the end of every session fails; nobody waits for it to get better."""
    monkeypatch.setattr(client_module, "put_share", stored_at_once)
    monkeypatch.setattr(writer, "retry_while", lambda work, **_: work())

    def failing(error: SutureError) -> None:
        def finish(_scm: ScmClient, _request: object) -> None:
            raise error

        monkeypatch.setattr(ScmClient, "end_write_session", finish)

    return failing


def sources(count: int) -> list[SourceFile]:
    """Return sources that nobody reads."""
    return [SourceFile(f"k{number}", Path("x"), 1, b"x") for number in range(count)]


def test_put_succeeds_if_the_scm_goes_away_after_the_commits(
    fails: Callable[[SutureError], None],
) -> None:
    """Every key is committed, and the sessions expire by themselves."""
    fails(AWAY)

    with ClusterClient(NOBODY) as client:
        stored, _ = client.put(sources(3), lanes=2)

    assert {"k0", "k1", "k2"} == {item.key for item in stored}


@pytest.mark.parametrize("error", [AWAY, FORBIDDEN])
def test_an_end_that_fails_says_what_is_stored(
    fails: Callable[[SutureError], None], error: SutureError
) -> None:
    """
    Containers that were to be closed are not, or it may not be asked for: all keys are there.
    """
    fails(error)

    with ClusterClient(NOBODY) as client, pytest.raises(SutureError) as caught:
        client.put(sources(3), close=True)

    assert "3" == caught.value.facts["stored_files"]


def test_the_command_says_it_too(
    fails: Callable[[SutureError], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with the error and the number of stored files."""
    (tmp_path / "file").write_bytes(b"x")
    fails(AWAY)

    code = run(["put", str(tmp_path / "file"), "--close", "--scm", NOBODY])

    assert ExitCode.UNAVAILABLE == code
    told = capsys.readouterr().err
    assert "stored 1 of 1 files" in told
    assert "the SCM is away" in told
