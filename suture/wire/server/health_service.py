"""The standard gRPC health service, without its method `Watch`.

The library's `Watch` can cause a deadlock of the server (grpcio-health-checking 1.85). It holds its
lock while it waits until a response is sent. If a client disconnects at that moment, gRPC's thread
waits for the same lock, although only this thread would report that the response was sent.
Therefore, this service answers `Watch` with UNIMPLEMENTED, as the protocol allows, and clients must
call `Check` instead.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2

HEALTH: Final[Any] = health_pb2.DESCRIPTOR.services_by_name["Health"]


class Health:
    """Answers health checks for each service and for the complete server."""

    def __init__(self, services: Sequence[str], is_well: Callable[[], bool] = lambda: True) -> None:
        """Create the service for the given service names. `is_well` returns False if the process
        can answer but is unhealthy."""
        self.is_well = is_well
        self._statuses = health.HealthServicer()
        for name in ("", *services):
            self._statuses.set(name, health_pb2.HealthCheckResponse.SERVING)

    def enter_graceful_shutdown(self) -> None:
        """Return NOT_SERVING for all services from now on."""
        self._statuses.enter_graceful_shutdown()

    def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Return the health of one service. The empty name means the complete server."""
        answer = self._statuses.Check(request, context)
        if answer.status == health_pb2.HealthCheckResponse.SERVING and not self.is_well():
            return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)
        return answer

    def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> Iterator[health_pb2.HealthCheckResponse]:
        """Abort the call with UNIMPLEMENTED. The docstring of the module explains the reason."""
        del request
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "ask Check")
        yield
