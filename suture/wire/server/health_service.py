"""The standard health service, without `Watch`.

The library's `Watch` holds its lock while it waits for an answer to be sent, and takes the same
lock when a watcher disconnects, on the thread that would have reported the answer as sent. So one
client that starts to watch while another disconnects blocks the whole server
(grpcio-health-checking 1.85). Clients get UNIMPLEMENTED, as the protocol provides, and call `Check`
instead.
"""

from collections.abc import Callable, Iterator, Sequence

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from suture.runtime.middleware import MiddlewareStack


class Health(health_pb2_grpc.HealthServicer):
    """Returns the health of each service."""

    def __init__(self, services: Sequence[str], is_well: Callable[[], bool] = lambda: True) -> None:
        """`is_well` returns health that goes beyond the ability to answer."""
        self.is_well = is_well
        self._statuses = health.HealthServicer()
        for name in ("", *services):
            self._statuses.set(name, health_pb2.HealthCheckResponse.SERVING)

    def add_to(self, methods: MiddlewareStack) -> None:
        """Add the service to a server's methods."""
        health_pb2_grpc.add_HealthServicer_to_server(self, methods)  # type: ignore[arg-type]

    def enter_graceful_shutdown(self) -> None:
        """Report from now on that nothing serves."""
        self._statuses.enter_graceful_shutdown()

    def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Answer for one service; the empty name is the whole server."""
        answer = self._statuses.Check(request, context)
        if answer.status == health_pb2.HealthCheckResponse.SERVING and not self.is_well():
            return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)
        return answer

    def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> Iterator[health_pb2.HealthCheckResponse]:
        """Refuse: see the module's docstring."""
        del request
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "ask Check")
        yield
