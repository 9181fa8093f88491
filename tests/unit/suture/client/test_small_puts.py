"""Small puts of several threads: which travel together, and what each of them returns."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from suture.client import small_puts
from suture.client.file_pieces import SourceFile
from suture.client.small_puts import SmallPuts
from suture.client.writer import SessionState, StoredFile
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from tests.support.waiting import wait_until


@dataclass
class Sessions:
    """A pool whose sessions record their batches; the first put waits until it is let go."""

    existing: frozenset[str] = frozenset()
    error: SutureError | None = None
    batches: list[list[str]] = field(default_factory=list)
    renewals: list[str] = field(default_factory=list)
    kept: list["Session"] = field(default_factory=list)
    ended: list["Session"] = field(default_factory=list)
    has_begun: Event = field(default_factory=Event)
    may_go_on: Event = field(default_factory=Event)
    on_renewal: Callable[[], None] = lambda: None

    def acquire(
        self, _scheme: object, progress: Callable[[int], None], waits: Callable[..., None]
    ) -> "Session":
        return Session(self, progress, waits)

    def release(self, session: "Session") -> None:
        self.kept.append(session)


class Session:
    """A session of such a pool."""

    def __init__(
        self, pool: Sessions, progress: Callable[[int], None], waits: Callable[..., None]
    ) -> None:
        self.pool = pool
        self.progress = progress
        self.waits = waits
        self.stopped = False
        self.state = SessionState(renew_s=0.02)

    def put(self, sources: Sequence[SourceFile], *, replace: bool) -> list[StoredFile]:
        del replace
        keys = [source.key for source in sources]
        self.pool.batches.append(keys)
        self.pool.has_begun.set()
        assert self.pool.may_go_on.wait(10)
        if self.stopped:
            raise UnavailableError(Code.CANCELLED, "stopped")
        for key in keys:
            if key in self.pool.existing:
                raise RefusedError(Code.KEY_EXISTS, f"key {key} exists")
        if len(self.pool.batches) > 1 and self.pool.error is not None:
            raise self.pool.error
        self.progress(sum(source.size_bytes for source in sources))
        return [StoredFile(source.key, source.size_bytes, (), 3) for source in sources]

    def renew(self) -> None:
        self.pool.renewals.append(self.state.client_id)
        self.pool.on_renewal()

    def finish(self, *, close: bool) -> None:
        assert not close
        self.pool.ended.append(self)


@contextmanager
def running(pool: Sessions) -> Iterator[tuple[SmallPuts, Callable[..., "Future[StoredFile]"]]]:
    """Yield the puts under test, and what has another thread put a file and be in the queue."""
    puts = SmallPuts(pool)  # type: ignore[arg-type]  # the fake has what they call
    with ThreadPoolExecutor(32) as threads:

        def begin(
            key: str, *, size_bytes: int = 10, replace: bool = False, **options: Any
        ) -> "Future[StoredFile]":
            count = len(puts._waiting)
            is_first = not pool.has_begun.is_set()
            source = SourceFile(key, Path(key), size_bytes, b"")
            options = {"progress": lambda _: None, "waits": lambda _: None} | options
            put = threads.submit(puts.put, source, replace=replace, **options)
            wait_until(lambda: pool.has_begun.is_set() if is_first else len(puts._waiting) > count)
            return put

        try:
            yield puts, begin
        finally:
            pool.may_go_on.set()
            puts.close()


def test_puts_that_arrive_while_one_is_written_travel_together() -> None:
    """The first one does not wait for company."""
    pool = Sessions()
    with running(pool) as (_, begin):
        puts = [begin(f"k{number}") for number in range(5)]
        pool.may_go_on.set()
        stored = [put.result(10).key for put in puts]

    assert [["k0"], ["k1", "k2", "k3", "k4"]] == pool.batches
    assert ["k0", "k1", "k2", "k3", "k4"] == stored
    assert (2, 0) == (len(pool.kept), len(pool.ended))


def test_thread_that_puts_again_travels_with_those_that_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the threads would take turns in two halves, at twice the cost."""
    monkeypatch.setattr(small_puts, "GATHER_S", 20.0)
    pool = Sessions()
    with running(pool) as (puts, begin):
        first = begin("k0")
        others = [begin("k1"), begin("k2")]
        pool.may_go_on.set()
        first.result(10)
        source = SourceFile("k3", Path("k3"), 1, b"x")
        puts.put(source, replace=False, progress=lambda _: None, waits=lambda _: None)
        for put in others:
            put.result(10)

    assert [["k0"], ["k1", "k2", "k3"]] == pool.batches


def test_existing_key_fails_its_own_put_only() -> None:
    """A refused batch is repeated one by one, and the session of a refused put ends."""
    pool = Sessions(existing=frozenset({"k2"}))
    with running(pool) as (_, begin):
        puts = [begin(f"k{number}") for number in range(4)]
        pool.may_go_on.set()
        errors = [put.exception(10) for put in puts]

    assert [["k0"], ["k1", "k2", "k3"], ["k1"], ["k2"], ["k3"]] == pool.batches
    assert [None, None, "key k2 exists", None] == [error and str(error) for error in errors]
    assert isinstance(errors[2], RefusedError)
    assert (3, 2) == (len(pool.kept), len(pool.ended))


def test_failure_of_the_cluster_fails_a_whole_batch_once() -> None:
    """Each put has an error of its own, which names its key; nothing is repeated."""
    pool = Sessions(error=UnavailableError(Code.NOT_ENOUGH_NODES, "two are down", hint="wait"))
    with running(pool) as (_, begin):
        puts = [begin(f"k{number}") for number in range(3)]
        pool.may_go_on.set()
        errors = [put.exception(10) for put in puts[1:]]

    assert [["k0"], ["k1", "k2"]] == pool.batches
    assert 2 == len(set(map(id, errors)))
    for error, key in zip(errors, ("k1", "k2"), strict=True):
        assert isinstance(error, UnavailableError)
        assert (Code.NOT_ENOUGH_NODES, "wait") == (error.code, error.hint)
        assert f"cannot store {key}, sent with 1 others: two are down" == str(error)


def test_batch_holds_each_key_once_and_one_mode() -> None:
    """Two versions of a key are stored one after the other, and nothing is replaced unasked."""
    pool = Sessions()
    with running(pool) as (_, begin):
        puts = [begin("k0")]
        puts += [begin("a", replace=True), begin("a", replace=True), begin("b", replace=True)]
        puts += [begin("c")]
        pool.may_go_on.set()
        for put in puts:
            put.result(10)

    assert [["k0"], ["a", "b"], ["a"], ["c"]] == pool.batches


@pytest.mark.parametrize(("name", "value"), [("ALLOCATION_BATCH", 2), ("RUN_BYTES_MAX", 20)])
def test_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch, name: str, value: int) -> None:
    """By the files of one allocation, and by the bytes of one stream."""
    monkeypatch.setattr(small_puts, name, value)
    pool = Sessions()
    with running(pool) as (_, begin):
        puts = [begin(f"k{number}") for number in range(6)]
        pool.may_go_on.set()
        for put in puts:
            put.result(10)

    assert [["k0"], ["k1", "k2"], ["k3", "k4"], ["k5"]] == pool.batches


def test_progress_of_a_batch_is_that_of_each_put() -> None:
    """Each put receives its own bytes, and an exception in its callback is its own."""
    pool, sent = Sessions(), list[tuple[str, int]]()

    def stop(_sent_bytes: int) -> None:
        raise LookupError

    with running(pool) as (_, begin):
        puts = [begin(key, progress=lambda b, key=key: sent.append((key, b))) for key in "ab"]
        puts.append(begin("c", progress=stop))
        pool.may_go_on.set()
        errors = [put.exception(10) for put in puts]

    assert [["a"], ["b", "c"]] == pool.batches
    assert [("a", 10), ("b", 10)] == sorted(sent)
    assert [None, None, LookupError] == [error and type(error) for error in errors]


def test_close_fails_waiting_puts_and_stops_those_under_way() -> None:
    """No put waits for ever, and a later one is refused."""
    pool = Sessions()
    with running(pool) as (puts, begin):
        under_way, waiting = begin("a"), begin("b")
        puts.close()
        pool.may_go_on.set()
        source = SourceFile("c", Path("c"), 1, b"c")
        with pytest.raises(UnavailableError, match="the connection was closed"):
            puts.put(source, replace=False, progress=lambda _: None, waits=lambda _: None)
        errors = [put.exception(10) for put in (under_way, waiting)]

    assert [["a"]] == pool.batches
    assert ["stopped", "the connection was closed"] == [str(error) for error in errors]


def test_session_is_renewed_while_a_put_takes_long() -> None:
    """The control plane does not close its container as abandoned."""
    pool = Sessions()
    with running(pool) as (_, begin):
        put = begin("a")
        wait_until(lambda: len(pool.renewals) > 1)
        pool.may_go_on.set()
        put.result(10)

    assert {pool.kept[0].state.client_id} == set(pool.renewals)


def test_batch_that_nobody_waits_for_is_stopped() -> None:
    """Ctrl-C in the only waiting thread ends what is written for it."""
    pool = Sessions()

    def interrupt() -> None:
        raise KeyboardInterrupt

    pool.on_renewal = interrupt
    with running(pool) as (_, begin):
        error = begin("a").exception(10)
        pool.may_go_on.set()
        wait_until(lambda: bool(pool.ended))

    assert isinstance(error, KeyboardInterrupt)
    assert pool.ended[0].stopped
