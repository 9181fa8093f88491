"""Archives that Ozone's datanodes push while others arrive: they wait for their turn."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from queue import Queue
from typing import Any

import grpc
import pytest

from agent.store.operations.replica_import import ARRIVALS_MAX
from ozone.transfer.import_admission import ImportAdmission
from ozone.transfer.messages import SERVICE
from ozone.transfer.service import ReplicationService
from suture.errors import Code, UnavailableError
from tests.support.ozone.ozone_agent import Actions
from tests.support.ozone.ozone_wire import WIRE
from tests.support.wire.served import add_service

WAIT_S = 30.0


class Slots:
    """Counts how many are taken."""

    def __init__(self) -> None:
        self.free = threading.Semaphore(0)

    def acquire(self) -> None:
        self.free.acquire()

    def release(self) -> None:
        self.free.release()


class Importer:
    """Takes archives, each of which ends when it is let go; says which are under way."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way: set[int] = set()
        self.most = 0
        self._let_go: set[int] = set()

    def receive(self, container_id: int, data: Iterator[bytes], _compression: object) -> None:
        """Take one, as slowly as the test has it."""
        with self._changed:
            self._under_way.add(container_id)
            self.most = max(self.most, len(self._under_way))
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: container_id in self._let_go, WAIT_S)
            self._under_way.remove(container_id)
            self._changed.notify_all()
        b"".join(data)

    def let_go(self, *container_ids: int) -> None:
        """Let these end."""
        with self._changed:
            self._let_go.update(container_ids)
            self._changed.notify_all()

    def await_begun(self, count: int) -> set[int]:
        """Wait until so many are under way; return which."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._under_way) == count, WAIT_S)
            return set(self._under_way)


@contextmanager
def serving(
    turns: ImportAdmission, importer: Importer, call_count: int, monotonic_s: Callable[[], float]
) -> Iterator[Any]:
    """A service for so many calls; yield its method `upload`."""
    pool = ThreadPoolExecutor(2 * call_count)
    server = grpc.server(pool)
    service: Any = ReplicationService(
        importer,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        Actions(),
        lambda *_: None,
        turns,
        lease_timeout_s=1.0,
        monotonic_s=monotonic_s,
    )
    add_service(server, SERVICE, service)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel.stream_unary(f"/{SERVICE.full_name}/upload")
    server.stop(0).wait()
    pool.shutdown()


def messages(container_id: int, *parts: bytes) -> Iterator[bytes]:
    """Yield the messages of an archive in these parts."""
    position = 0
    for part in parts:
        message = WIRE["Upload"](containerID=container_id, offset=position, data=part)
        yield message.SerializeToString()
        position += len(part)


@contextmanager
def pushed(
    turns: ImportAdmission, importer: Importer, count: int
) -> Iterator[list["Future[bytes]"]]:
    """Push so many containers at once; their answers."""
    with serving(turns, importer, count, time.monotonic) as upload:
        numbers = range(1, count + 1)
        yield [upload.future(messages(one, b"x"), timeout=2 * WAIT_S) for one in numbers]
        importer.let_go(*numbers)


def test_archive_beyond_the_limit_waits_for_its_turn() -> None:
    """The archive gives its slot back while it waits, and is not refused."""
    importer, slots = Importer(), Slots()
    with pushed(ImportAdmission(slots), importer, ARRIVALS_MAX + 1) as answers:
        begun = importer.await_begun(ARRIVALS_MAX)
        assert slots.free.acquire(timeout=WAIT_S)  # the slot of the one that waits
        slots.release()

        importer.let_go(*begun)
        (last,) = set(range(1, ARRIVALS_MAX + 2)) - begun
        importer.await_begun(1)
        importer.let_go(last)

        assert all(answer.result(WAIT_S) is not None for answer in answers)
    assert ARRIVALS_MAX == importer.most


def test_archive_that_waits_too_long_is_refused() -> None:
    """The message states the cause. Archives under way go on."""
    importer = Importer()
    with pushed(ImportAdmission(Slots(), wait_s=0.0), importer, ARRIVALS_MAX + 1) as answers:
        importer.await_begun(ARRIVALS_MAX)
        done: Queue[Any] = Queue()
        for answer in answers:
            answer.add_done_callback(done.put)
        error = done.get(timeout=WAIT_S).exception()

    assert grpc.StatusCode.RESOURCE_EXHAUSTED is error.code()
    assert (
        "cannot import the container: 6 imports are running, and none finished within 0 s"
        == error.details()
    )


def test_cancelled_upload_stops_waiting_for_its_turn() -> None:
    """The turn is not consumed, and the thread is free."""
    slots = Slots()
    turns = ImportAdmission(slots)
    held = [turns.admit(lambda: True) for _ in range(ARRIVALS_MAX)]
    for one in held:
        one.__enter__()

    with pytest.raises(UnavailableError) as caught, turns.admit(lambda: False):
        raise AssertionError("nobody's turn")

    assert Code.CANCELLED is caught.value.code


def test_slow_sender_loses_its_turn() -> None:
    """Six senders that drip bytes would keep every other container out for days."""
    importer = Importer()
    importer.let_go(1, 2)
    seconds = count(0, 10)  # a clock by which each wait takes ten seconds
    with serving(ImportAdmission(Slots()), importer, 1, lambda: next(seconds)) as upload:
        with pytest.raises(grpc.RpcError) as caught:
            upload(messages(1, *[b"x"] * 100), timeout=WAIT_S)

        assert "the sender is slower than 16384 bytes/s" == caught.value.details()
        upload(messages(2, *[bytes(200_000)] * 100), timeout=WAIT_S)  # slow, but that it may be
