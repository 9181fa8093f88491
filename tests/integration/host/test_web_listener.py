"""The plain HTTP listener among clients that are slow, hostile or sent by a stranger."""

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest

from suture.runtime.http_listener import CONNECTION_COUNT_MAX, SLOW_S, HttpResponse, WebListener

WAIT_S = 20.0


@pytest.fixture
def listener() -> Iterator[WebListener]:
    """Serve one page."""
    made = WebListener(
        "127.0.0.1:0", {"/": lambda: HttpResponse(b"here\n")}, ["dn1.example.net", ""]
    )
    made.start()
    yield made
    made.stop()


def dial(listener: WebListener) -> socket.socket:
    """Connect."""
    host, _, port = listener.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


def ask(listener: WebListener, *lines: str, request: str = "GET / HTTP/1.1") -> bytes:
    """Send a request; return all that comes back."""
    with dial(listener) as connection:
        connection.sendall("\r\n".join([request, *lines, "", ""]).encode("latin-1"))
        parts = []
        try:
            while part := connection.recv(65_536):
                parts.append(part)
        except ConnectionError:
            pass
        return b"".join(parts)


def status(answer: bytes) -> int:
    """Return the status of an answer; 0 without one."""
    return int(answer.split(b" ", 2)[1]) if answer else 0


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("localhost", 200),
        ("LOCALHOST:9861", 200),
        ("127.0.0.1:9861", 200),
        ("10.1.2.3", 200),
        ("[::1]:9861", 200),
        ("dn1.example.net:9861", 200),
        ("evil.example.com", 400),
        ("dn1.example.net.evil.com", 400),
        ("127.0.0.1.evil.com", 400),
        ("", 400),
    ],
)
def test_host_header_decides_the_status_code(listener: WebListener, host: str, code: int) -> None:
    """An address, localhost and the configured names are accepted. A foreign name that resolves
    to this host is not.
    """
    assert code == status(ask(listener, f"Host: {host}"))


@pytest.mark.parametrize(
    "lines",
    [
        ("Host: localhost", "Host: evil.example.com"),
        ("Host: localhost", "Content-Length: 5"),
        ("Host: localhost", "Content-Length: 0", "Content-Length: 7"),
        ("Host: localhost", "Transfer-Encoding: chunked"),
        ("Host: localhost", *(f"X-{number}: a" for number in range(200))),
        ("Host: localhost", "X-Long: " + "a" * 70_000),
    ],
    ids=["two hosts", "a body", "two lengths", "chunks", "many headers", "a long header"],
)
def test_odd_requests_are_refused(listener: WebListener, lines: tuple[str, ...]) -> None:
    """An odd request is refused, and the next one is answered."""
    assert status(ask(listener, *lines)) in {0, 400, 431}
    assert 200 == status(ask(listener, "Host: localhost"))


def test_pipelined_second_request_is_ignored(listener: WebListener) -> None:
    """Bytes behind the first request are not taken for another."""
    answer = ask(listener, "Host: localhost", "", "GET / HTTP/1.1", "Host: localhost")

    assert 1 == answer.count(b"HTTP/1.")


def test_no_other_page_may_frame_it(listener: WebListener) -> None:
    """The headers forbid frames in new and in old browsers."""
    answer = ask(listener, "Host: localhost")

    assert b"frame-ancestors 'none'" in answer
    assert b"X-Frame-Options: DENY" in answer


def test_slow_clients_give_way(listener: WebListener) -> None:
    """Slow clients that occupy every place do not keep others from being answered."""
    with ExitStack() as opened:
        slow = [opened.enter_context(dial(listener)) for _ in range(CONNECTION_COUNT_MAX)]
        for connection in slow:
            connection.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        begun_s = time.monotonic()
        answered = 0
        while not answered and time.monotonic() - begun_s < WAIT_S:
            answered = status(ask(listener, "Host: localhost"))

        assert 200 == answered
        assert time.monotonic() - begun_s < SLOW_S * 4


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/ask", ""),
        ("/ask?a=1", "a=1"),
        ("/ask?a=%2Fr%20x&b=", "a=/r x,b="),
        ("/ask?a=1&a=2", "a=1"),
        ("/ask?a", "a="),
        ("/ask?a=%ff", "a=\ufffd"),
        ("/ask?" + "&".join(f"a{i}=1" for i in range(9)), ""),
    ],
)
def test_a_page_is_told_what_it_is_asked_for(path: str, said: str) -> None:
    """Words by name, of each the first; of too many none, and nothing breaks."""

    def page(asked: Mapping[str, str]) -> HttpResponse:
        return HttpResponse(",".join(f"{name}={word}" for name, word in asked.items()).encode())

    made = WebListener("127.0.0.1:0", {}, asking={"/ask": page})
    made.start()
    try:
        answer = ask(made, "Host: localhost", request=f"GET {path} HTTP/1.1")
    finally:
        made.stop()

    assert 200 == status(answer)
    assert said == answer.partition(b"\r\n\r\n")[2].decode()
