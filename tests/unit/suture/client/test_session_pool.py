"""Writer sessions kept between puts: for which put, how many, and their end."""

from types import SimpleNamespace
from typing import Any

import pytest

from suture.client.session_pool import SESSIONS_KEPT_MAX, SessionPool
from suture.client.writer import SessionState, WriterSession
from suture.ec.scheme import parse_scheme
from suture.wire.v1 import scm_pb2

SCHEME = parse_scheme("xor-2-1-16k")


class Scm:
    """A control plane that records the sessions that are ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.stub = SimpleNamespace(EndWriteSession=SimpleNamespace(future=self._end))

    def end_write_session(self, request: scm_pb2.EndWriteSessionRequest) -> None:
        assert not request.close
        self.ended.append(request.client_id)

    def _end(self, request: scm_pb2.EndWriteSessionRequest, **_: object) -> SimpleNamespace:
        self.end_write_session(request)
        return SimpleNamespace(result=lambda: None)


@pytest.fixture
def scm() -> Scm:
    """A control plane."""
    return Scm()


@pytest.fixture
def pool(scm: Scm) -> SessionPool:
    """The sessions of a client of it that calls no datanode."""
    uncalled: Any = None
    return SessionPool(scm, uncalled, uncalled)  # type: ignore[arg-type]


def lent(pool: SessionPool, scheme: Any = None) -> WriterSession:
    """Return a session that has been promised blocks."""
    session = pool.acquire(scheme, lambda _: None, lambda _: None)
    session.state.has_blocks = True
    return session


def test_kept_session_is_lent_to_one_put_of_its_scheme(pool: SessionPool, scm: Scm) -> None:
    """The session used last is lent first; a stop of the earlier put does not stop the later."""
    first, second, coded = lent(pool), lent(pool), lent(pool, SCHEME)
    first.stopped = True
    for session in (second, coded, first):
        pool.release(session)

    again = [lent(pool), lent(pool), lent(pool), lent(pool, SCHEME)]

    assert [first.state, second.state] == [one.state for one in again[:2]]
    assert coded.state is again[3].state
    assert again[2].state not in [first.state, second.state, coded.state]
    assert not any(session.stopped for session in again)
    assert [] == scm.ended


def test_sessions_beyond_the_limit_are_ended(pool: SessionPool, scm: Scm) -> None:
    """Each open container reserves room."""
    sessions = [lent(pool) for _ in range(SESSIONS_KEPT_MAX + 2)]

    for session in sessions:
        pool.release(session)

    assert [session.state.client_id for session in sessions[-2:]] == scm.ended


def test_close_ends_kept_sessions_and_keeps_no_more(pool: SessionPool, scm: Scm) -> None:
    """The next session of another client goes on in their containers."""
    kept, under_way = lent(pool), lent(pool)
    pool.release(kept)

    pool.close()
    pool.release(under_way)

    assert [kept.state.client_id, under_way.state.client_id] == scm.ended


def test_a_session_remembers_only_the_containers_of_its_last_put() -> None:
    """A client that runs for months does not report the failures of its first day each time."""
    state = SessionState(
        failed={(1, "dn1"): "away", (2, "dn2"): "away"}, created={(1, "dn2"), (2, "dn1")}
    )

    state.forget_except({2})

    assert {(2, "dn2"): "away"} == state.failed
    assert {(2, "dn1")} == state.created
