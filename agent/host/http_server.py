"""HTTP server of the agent for metrics, health checks and a status page."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

from agent.observe.datanode_page import status_page
from agent.observe.datanode_status import DatanodeStatus
from agent.observe.healthz import health, health_text
from agent.observe.metrics import AgentMetrics, registry_of
from agent.scan.scan_control import BackgroundScans
from suture.observe.metric_table import CONTENT_TYPE, exposition
from suture.runtime.clock import Clock
from suture.runtime.http_listener import HttpResponse, WebListener
from suture.wire.security.caller import expires_at_s
from suture.wire.security.tls import LOOPBACK_ONLY, Security

JSON_TYPE: Final = "application/json"


class DatanodeHttpServer:
    """HTTP server of one datanode: /metrics, /healthz and a status page.

    It is disabled if its address is "".
    """

    def __init__(
        self,
        address: str,
        observer: DatanodeStatus,
        scrub: BackgroundScans,
        clock: Clock,
        *,
        meters: AgentMetrics,
        security: Security = LOOPBACK_ONLY,
        calls_trouble: Callable[[], str] = lambda: "",
        names: Sequence[str] = (),
    ) -> None:
        """Bind `address`. Raise RefusedError if this fails.

        `names` are additional host names that requests may contain. `calls_trouble` returns the
        reason why calls of clients and peers may get no answer, or "" if they are answered.
        """
        self._observer = observer
        self._scrub = scrub
        self._clock = clock
        self._calls_trouble = calls_trouble
        self._registry = registry_of(meters, observer, scrub.status, lambda: expires_at_s(security))
        pages = {"/": self._page, "/metrics": self._metrics, "/healthz": self._health}
        self._listener = WebListener(address, pages, names) if address else None

    @property
    def address(self) -> str:
        """Address of the HTTP server; "" if it is disabled."""
        return self._listener.address if self._listener else ""

    def start(self) -> None:
        """Start the HTTP server if it is enabled."""
        if self._listener:
            self._listener.start()

    def stop(self) -> None:
        """Stop the HTTP server if it is enabled."""
        if self._listener:
            self._listener.stop()

    def is_well(self) -> bool:
        """Return whether /healthz would return the status 200 now."""
        return self._judged()[0] == HTTPStatus.OK

    def _judged(self) -> tuple[HTTPStatus, dict[str, object]]:
        return health(self._observer.status(), self._scrub.status(), self._calls_trouble())

    def _page(self) -> HttpResponse:
        now_ms = self._clock.now_ms()
        found = self._observer.findings()
        return HttpResponse(status_page(self._observer, self._scrub.status(), now_ms, found))

    def _metrics(self) -> HttpResponse:
        return HttpResponse(exposition(self._registry), CONTENT_TYPE)

    def _health(self) -> HttpResponse:
        code, document = self._judged()
        return HttpResponse(health_text(document), JSON_TYPE, code)
