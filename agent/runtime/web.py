"""The plain HTTP listener: metrics, health, a page to look at. It reads, and changes nothing.

Threads are bounded: when all are busy, a connection is closed at once, and nothing else slows down.
"""

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final

import structlog

from agent.errors import Code, Refused

CONNECTION_COUNT_MAX: Final = 8  # a browser, Prometheus and its twin, and some to spare
REQUEST_S: Final = 10.0  # a client that says nothing for so long is cut off
STOP_POLL_S: Final = 0.1
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
}

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Page:
    """What one path answers."""

    body: bytes
    content_type: str = "text/html; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


Pages = Mapping[str, Callable[[], Page]]


class WebListener:
    """Serves pages by their exact path, from the moment it is started until it is stopped."""

    def __init__(self, address: str, pages: Pages) -> None:
        """Bind `address`, host:port; port 0 takes a free one. Raise Refused(INVALID_CONFIG)."""
        host, _, port = address.rpartition(":")
        handler = type("Handler", (_Handler,), {"pages": dict(pages)})
        server_type = _IpV6Server if host.startswith("[") else _Server
        try:
            self._server = server_type((host.strip("[]"), int(port)), handler)
        except (OSError, OverflowError) as error:
            raise Refused(
                Code.INVALID_CONFIG,
                f"observe.listen: cannot listen on {address}: {error}",
                hint="is another agent using the port? port 0 takes a free one",
            ) from error
        self._host = host
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_POLL_S,), name="web", daemon=True
        )

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self._host}:{self._server.server_address[1]}"

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more. Safe before `start`."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.BoundedSemaphore(CONNECTION_COUNT_MAX)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hand a connection to a thread of its own, if there may be one more."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nobody's fault."""


class _IpV6Server(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    pages: ClassVar[Pages] = {}
    timeout = REQUEST_S
    server_version = "suture"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the page of this path."""
        make = self.pages.get(self.path.partition("?")[0])
        if make is None:
            self._send(Page(b"not found\n", "text/plain", HTTPStatus.NOT_FOUND))
            return
        try:
            page = make()
        except Exception as error:  # noqa: BLE001 - a page is a worker, too: it says so and goes on
            log.warning("page_failed", path=self.path, error=str(error))
            text = f"cannot be told now: {error}\n".encode()
            page = Page(text, "text/plain", HTTPStatus.SERVICE_UNAVAILABLE)
        self._send(page)

    do_HEAD = do_GET  # noqa: N815 - the library's name

    def log_message(self, *_: object) -> None:
        """Say nothing: a scrape every few seconds is no event."""

    def _send(self, page: Page) -> None:
        self.send_response(page.status)
        headers = {"Content-Type": page.content_type, "Content-Length": str(len(page.body))}
        for name, value in {**headers, **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)
