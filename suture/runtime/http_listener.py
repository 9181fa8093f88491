"""A read-only HTTP listener for metrics, health and a status page.

The number of threads is limited, and so is the time of a connection. A connection has one request
and `REQUEST_S` seconds in total, or `SLOW_S` seconds if other connections wait.

A page is returned only if the request's Host header is an address or one of the names of this host.
Otherwise, a malicious web site could resolve its own name to this host, and its script could read
the page in a browser.
"""

import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, ClassVar, Final
from urllib.parse import parse_qs

import structlog

from suture.errors import Code, RefusedError

CONNECTION_COUNT_MAX: Final = 8  # a browser, two Prometheus servers, and some to spare
REQUEST_S: Final = 10.0  # seconds for one connection, from its first byte to the end of the answer
SLOW_S: Final = 2.0  # a connection older than this is closed if others wait
QUERY_FIELDS_MAX: Final = 8
STOP_POLL_S: Final = 0.1
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The response to a request for one path."""

    body: bytes
    content_type: str = "text/html; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


Pages = Mapping[str, Callable[[], HttpResponse]]
AskingPages = Mapping[str, Callable[[Mapping[str, str]], HttpResponse]]
"""Pages with query parameters. The function of a page gets the first value of each parameter."""


class WebListener:
    """Serves pages by their exact path, from the call of `start` to the call of `stop`."""

    def __init__(
        self,
        address: str,
        pages: Pages,
        names: Iterable[str] = (),
        *,
        asking: AskingPages = MappingProxyType({}),
    ) -> None:
        """Bind `address` (host:port; port 0 = any free port). Raise RefusedError(INVALID_CONFIG) if
        this fails.

        `pages` and `asking` have the function that renders the page of each path. `names` are
        additional names of this host that a request may use.
        """
        host, _, port = address.rpartition(":")
        own = {"localhost", host, socket.gethostname(), *names}
        own_names = frozenset(name.lower() for name in own if name)
        served = {"pages": dict(pages), "asking": dict(asking), "names": own_names}
        handler = type("Handler", (_Handler,), served)
        server_type = _IpV6Server if host.startswith("[") else _Server
        try:
            self._server = server_type((host.strip("[]"), int(port)), handler)
        except (OSError, OverflowError, ValueError) as error:
            raise RefusedError(
                Code.INVALID_CONFIG,
                f"cannot listen on {address} for HTTP: {error}",
                hint="check HOST:PORT and other users of the port; port 0 = any free port",
            ) from error
        self._host = host
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_POLL_S,), name="web", daemon=True
        )

    @property
    def address(self) -> str:
        """Address of the listener, with the actual port."""
        return f"{self._host}:{self._server.server_address[1]}"

    def start(self) -> None:
        """Start to serve requests."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving requests. The method may be called before `start`."""
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
        self._open: dict[Any, float] = {}  # start time of each connection by socket; oldest first
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in its own thread. If there are too many connections, close an old
        one. If this is not possible, close the new one."""
        if not self._free.acquire(blocking=False):
            self._cut(SLOW_S, count_max=1)
            if not self._free.acquire(timeout=STOP_POLL_S):
                self.shutdown_request(request)
                return
        self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Close connections that take too long. The library calls this method a few times a
        second."""
        self._cut(REQUEST_S, count_max=CONNECTION_COUNT_MAX)

    def _cut(self, age_s: float, *, count_max: int) -> None:
        now_s = time.monotonic()
        old = [one for one, since_s in list(self._open.items()) if now_s - since_s >= age_s]
        for connection in old[:count_max]:
            with suppress(OSError):  # it may have ended already
                connection.shutdown(socket.SHUT_RDWR)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle one connection, then free its slot."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.pop(request, None)
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error, because a client may disconnect at any time."""


class _IpV6Server(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    pages: ClassVar[Pages] = {}
    asking: ClassVar[AskingPages] = {}
    names: ClassVar[frozenset[str]] = frozenset()
    timeout = REQUEST_S
    server_version = "suture"
    sys_version = ""

    def do_GET(self) -> None:
        """Send the page of the requested path."""
        objection = _framing(self.headers) or _host_objection(self.headers, self.names)
        if objection:
            self._send(
                HttpResponse(f"{objection}\n".encode(), "text/plain", HTTPStatus.BAD_REQUEST)
            )
            return
        path, _, query = self.path.partition("?")
        make = self.pages.get(path)
        if path in self.asking:
            make = partial(self.asking[path], _words(query))
        if make is None:
            self._send(HttpResponse(b"not found\n", "text/plain", HTTPStatus.NOT_FOUND))
            return
        try:
            page = make()
        except Exception as error:  # noqa: BLE001 - a page is a worker, too: it says so and goes on
            log.warning("http_page_failed", path=self.path, error=str(error))
            text = f"cannot be told now: {error}\n".encode()
            page = HttpResponse(text, "text/plain", HTTPStatus.SERVICE_UNAVAILABLE)
        self._send(page)

    do_HEAD = do_GET  # noqa: N815 - the library's name

    def log_message(self, *_: object) -> None:
        """Do nothing, because a log line for each request would be useless."""

    def _send(self, page: HttpResponse) -> None:
        self.send_response(page.status)
        headers = {"Content-Type": page.content_type, "Content-Length": str(len(page.body))}
        for name, value in {**headers, **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)


def _words(query: str) -> dict[str, str]:
    """Return the parameters of a query string. Return an empty dictionary if the query string is
    invalid."""
    try:
        found = parse_qs(query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:
        return {}
    return {name: values[0] for name, values in found.items()}


def _framing(headers: Message) -> str:
    """Return an error text if a request has a body, which no page accepts. Return "" otherwise."""
    if headers.get_all("Transfer-Encoding") or any(
        value.strip() != "0" for value in headers.get_all("Content-Length", [])
    ):
        return "a request for a page has no body"
    return ""


def _host_objection(headers: Message, names: frozenset[str]) -> str:
    """Return the reason why a request is rejected because of its Host header. Return "" if the
    header is accepted."""
    hosts = headers.get_all("Host", [])
    if not hosts:
        return ""  # not a browser, because all browsers send a Host header
    if len(hosts) > 1:
        return "the request names several hosts"
    name = hosts[0].strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "" if name.rstrip(".") in names else "not a name of this host; see observe.names"
    return ""
