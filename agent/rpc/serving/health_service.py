"""The standard health service, without `Watch`.

The library's `Watch` holds its lock while it waits for an answer to leave, and takes the same lock
when a watcher goes away, on the thread that would have reported the answer as sent: one client that
begins to watch while another leaves stops the whole server for good (grpcio-health-checking 1.85).
Clients are told that it is not implemented, as the protocol provides; they ask `Check`.
"""

from collections.abc import Callable, Iterator, Sequence

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from agent.runtime.layers import Layers


class Health(health_pb2_grpc.HealthServicer):
    """Says of each service whether it serves."""

    def __init__(self, services: Sequence[str], is_well: Callable[[], bool] = lambda: True) -> None:
        """`is_well` is of who knows more than that we answer."""
        self.is_well = is_well
        self._statuses = health.HealthServicer()
        for name in ("", *services):
            self._statuses.set(name, health_pb2.HealthCheckResponse.SERVING)

    def add_to(self, methods: Layers) -> None:
        """Put it among the methods of a server."""
        health_pb2_grpc.add_HealthServicer_to_server(self, methods)  # type: ignore[arg-type]

    def enter_graceful_shutdown(self) -> None:
        """Say from now on that nothing serves."""
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
        """Refuse: see above."""
        del request
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "ask Check")
        yield
