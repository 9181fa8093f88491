"""What can never be right is refused before anybody is asked."""

import asyncio
import io
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from suture import AsyncClient, Client, Code, PutResult, RefusedError, UnavailableError

NOBODY = "127.0.0.1:9"


@pytest.mark.parametrize("key", ["", "a\nb", "a\0b", "\udc80", "k" * 1_025])
def test_a_key_that_cannot_be(key: str) -> None:
    """
    Empty, with a control character, no UTF-8, or too long.
    """
    with Client(NOBODY) as client:
        for call in (client.get, client.info, client.delete, lambda key: client.put(key, b"")):
            with pytest.raises(ValueError, match="invalid key"):
                call(key)


@pytest.mark.parametrize("prefix", ["a\nb", "\udc80", "k" * 1_025])
def test_a_prefix_that_no_key_can_have(prefix: str) -> None:
    """Except for the empty text, a prefix must follow the rules for keys."""
    with Client(NOBODY) as client, pytest.raises(ValueError, match="invalid prefix"):
        list(client.list(prefix))


@pytest.mark.parametrize(("start", "stop"), [(-1, None), (0, -1), (5, 4)])
def test_a_range_that_is_none(start: int, stop: int | None) -> None:
    """
    A slice would count from the end, or be empty: here it is a mistake.
    """
    with Client(NOBODY) as client, pytest.raises(ValueError, match="invalid range of bytes"):
        client.get("key", start=start, stop=stop)


@pytest.mark.parametrize("content", ["text", None, 5, io.StringIO("text")])
def test_content_that_cannot_be_stored_is_refused(content: Any) -> None:
    """A `str` could be a path or the content."""
    with Client(NOBODY) as client, pytest.raises(TypeError, match="under key"):
        client.put("key", content)


def test_a_file_of_ones_own_that_cannot_be_read(tmp_path: Path) -> None:
    """The error is the one that `open` raises."""
    with Client(NOBODY) as client:
        with pytest.raises(FileNotFoundError):
            client.put("key", tmp_path / "none")
        with pytest.raises(IsADirectoryError):
            client.put("key", tmp_path)


def test_certificates_that_do_not_go_together() -> None:
    """
    Those that are missing are named.
    """
    with pytest.raises(RefusedError, match="tls key and ca must be set, too") as caught:
        Client(NOBODY, tls_certificate="ann.pem")

    assert Code.INVALID_CONFIG == caught.value.code


def test_another_machine_is_not_called_without_certificates() -> None:
    """The caller has to allow plaintext explicitly."""
    with pytest.raises(RefusedError):
        Client("scm1.example:9860")
    Client("scm1.example:9860", allow_plaintext=True).close()


def test_a_task_that_is_cancelled_ends_the_stream_behind_the_piece_under_way() -> None:
    """The task ends at once, and the stream is closed when its thread returns from the datanode."""
    asyncio.run(cancelled_in_the_middle())


async def cancelled_in_the_middle() -> None:
    """Cancel a reader whose next piece does not come, and then let it come."""
    waits, may_go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def pieces() -> Generator[bytes, None, None]:
        try:
            waits.set()
            may_go_on.wait()
            yield b"late"
        finally:
            closed.set()

    hanging = pieces()  # held here: nobody closes it by letting go of it
    async with AsyncClient(NOBODY) as client:
        client._client.stream = lambda *_, **__: hanging  # type: ignore[method-assign]  # a datanode that hangs
        task = asyncio.create_task(client.get("key"))
        await asyncio.to_thread(waits.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not closed.is_set()
        may_go_on.set()
        assert await asyncio.to_thread(closed.wait, 10)


def test_a_put_whose_task_is_cancelled_stops_at_its_next_piece() -> None:
    """The progress callback raises the cancellation."""
    asyncio.run(put_cancelled_in_the_middle())


async def put_cancelled_in_the_middle() -> None:
    """Cancel a put that waits, and let it tell of its next piece then."""
    waits, may_go_on, ended = threading.Event(), threading.Event(), threading.Event()
    said: list[Code] = []

    def put(_: object, *, progress: Callable[[int], None], **__: object) -> tuple[PutResult, ...]:
        progress(1)
        waits.set()
        may_go_on.wait()
        try:
            progress(1)
        except UnavailableError as error:
            said.append(error.code)
            raise
        finally:
            ended.set()
        return (PutResult("key", 2, 3),)

    async with AsyncClient(NOBODY) as client:
        client._client.put_many = put  # type: ignore[assignment,method-assign]  # a cluster that is slow
        task = asyncio.create_task(client.put("key", b"ab"))
        await asyncio.to_thread(waits.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_go_on.set()
        assert await asyncio.to_thread(ended.wait, 10)
    assert [Code.CANCELLED] == said
