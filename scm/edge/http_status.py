"""What the control plane shows over plain HTTP: metrics, and whether it is well.

GET /healthz   200 "well", or 503 with a line for each thing that is wrong
GET /metrics   Prometheus' text format (`scm.edge.metrics`)
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from agent.runtime.callthreads import CallThreads
from agent.runtime.loop import LoopSet
from agent.runtime.web import Page, WebListener
from scm.edge.control import ControlPlane
from scm.edge.metrics import CONTENT_TYPE, FiguresCollector, exposition

WORKER_QUIET_S_MAX: Final = 60.0


class HttpStatus:
    """Answers the pages, and says whether the process is well."""

    def __init__(
        self,
        control: ControlPlane,
        calls: CallThreads,
        loops: LoopSet,
        is_ticking: Callable[[], bool],
    ) -> None:
        self._control = control
        self._calls = calls
        self._loops = loops
        self._is_ticking = is_ticking
        self._collector = FiguresCollector(
            control.figures, loops.status, lambda: self._calls.trouble
        )

    def listener(self, address: str) -> WebListener:
        """Return the listener on host:port. Raises Refused(INVALID_CONFIG)."""
        return WebListener(address, {"/healthz": self.healthz, "/metrics": self.metrics})

    def troubles(self) -> list[str]:
        """Return what is wrong with this process, a line each."""
        found = [self._calls.trouble] if self._calls.trouble else []
        if not self._is_ticking():
            found.append("time stands still: no tick has ended lately")
        found += [
            f"worker {name} shows no life" for name in self._loops.stalled(WORKER_QUIET_S_MAX)
        ]
        return found

    def healthz(self) -> Page:
        """Answer who restarts the process, or asks somebody else."""
        found = self.troubles()
        status = HTTPStatus.SERVICE_UNAVAILABLE if found else HTTPStatus.OK
        return Page(("\n".join(found or ["well"]) + "\n").encode(), "text/plain", status)

    def metrics(self) -> Page:
        """Answer a scrape."""
        return Page(exposition(self._control.meters, self._collector), CONTENT_TYPE)
