"""Serves the control plane's pages over plain HTTP: the cluster, metrics, and health.

These are the pages:

    GET /          the cluster for a browser; with ?rack=NAME or ?node=ID that rack or datanode
    GET /healthz   200 "well", or 503 with a line for each problem
    GET /metrics   Prometheus' text format (`scm.api.metrics`)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from scm.api.calls.control import ControlPlane
from scm.api.cluster_status.cluster_look import judged
from scm.api.metrics import TABLES, ProcessMetrics
from scm.api.pages.cluster_page import cluster_page
from scm.api.pages.node_pages import node_page, rack_page
from suture.observe.metric_table import CONTENT_TYPE, TableCollector, exposition
from suture.runtime.call_thread_pool import CallThreadPool
from suture.runtime.http_listener import HttpResponse, WebListener
from suture.runtime.loop import WorkerLoops

PAGE_DIGITS_MAX: Final = 6
WORKER_QUIET_S_MAX: Final = 60.0


@dataclass(eq=False)
class HttpStatus:
    """Serves the web pages, and reports the health of the process."""

    control: ControlPlane
    calls: CallThreadPool
    loops: WorkerLoops
    is_ticking: Callable[[], bool]

    def __post_init__(self) -> None:
        self.control.queries.watch(self._own_troubles)
        self.control.meters.registry.register(
            TableCollector(
                TABLES,
                lambda: ProcessMetrics(
                    self.control.queries.figures(), self.loops.status(), bool(self.calls.trouble)
                ),
            )
        )

    def listener(self, address: str) -> WebListener:
        """Return a listener on the address, given as host:port.

        Raise RefusedError(INVALID_CONFIG) if the address cannot be bound.
        """
        pages = {"/healthz": self.healthz, "/metrics": self.metrics}
        return WebListener(address, pages, asking={"/": self.page})

    def troubles(self) -> list[str]:
        """Return the problems of this process, one per line."""
        return self.control.queries.troubles()

    def _own_troubles(self) -> list[str]:
        found = [self.calls.trouble] if self.calls.trouble else []
        if not self.is_ticking():
            found.append("time stands still: no tick has ended lately")
        found += [f"worker {name} shows no life" for name in self.loops.stalled(WORKER_QUIET_S_MAX)]
        return found

    def page(self, asked: Mapping[str, str]) -> HttpResponse:
        """Return the web page of the cluster, of a rack, or of a datanode."""
        if "node" in asked:
            return self._node(asked["node"])
        if "rack" in asked:
            return self._rack(asked["rack"], asked.get("page", "0"))
        survey = self.control.queries.survey()
        return HttpResponse(cluster_page(survey, judged(survey.look, self.troubles())))

    def _node(self, datanode_id: str) -> HttpResponse:
        found = [v for v in self.control.queries.nodes() if v.node.datanode_id == datanode_id]
        if not found:
            return HttpResponse(b"no such datanode\n", "text/plain", HTTPStatus.NOT_FOUND)
        return HttpResponse(node_page(found[0], self.control.clock.wall_ms()))

    def _rack(self, rack: str, page: str) -> HttpResponse:
        found = [view for view in self.control.queries.nodes() if view.node.rack == rack]
        if not found or not (page.isascii() and page.isdigit()) or len(page) > PAGE_DIGITS_MAX:
            return HttpResponse(b"no such rack\n", "text/plain", HTTPStatus.NOT_FOUND)
        return HttpResponse(rack_page(rack, found, self.control.clock.wall_ms(), int(page)))

    def healthz(self) -> HttpResponse:
        """Return the health of the process as an HTTP response.

        The status is 200 if the process has no problem, otherwise 503 with one line per problem.
        """
        found = self.troubles()
        status = HTTPStatus.SERVICE_UNAVAILABLE if found else HTTPStatus.OK
        return HttpResponse(("\n".join(found or ["well"]) + "\n").encode(), "text/plain", status)

    def metrics(self) -> HttpResponse:
        """Return the metrics for a scrape by Prometheus."""
        return HttpResponse(exposition(self.control.meters.registry), CONTENT_TYPE)
