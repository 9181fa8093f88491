"""The standard gRPC health service, without `Watch`.

The library's `Watch` can deadlock the server (grpcio-health-checking 1.85). It holds its lock while
it waits until an answer is sent. If a watcher disconnects at that moment, gRPC's thread waits for
the same lock, and that thread would have reported the answer as sent. Therefore this service
answers `Watch` with UNIMPLEMENTED, as the protocol allows, and clients call `Check` instead.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2

HEALTH: Final[Any] = health_pb2.DESCRIPTOR.services_by_name["Health"]


class Health:
    """Answers health checks, for each service and for the whole server."""

    def __init__(self, services: Sequence[str], is_well: Callable[[], bool] = lambda: True) -> None:
        """Set up the services. `is_well` returns False if the process can answer but is
        unhealthy."""
        self.is_well = is_well
        self._statuses = health.HealthServicer()
        for name in ("", *services):
            self._statuses.set(name, health_pb2.HealthCheckResponse.SERVING)

    def enter_graceful_shutdown(self) -> None:
        """Report NOT_SERVING for all services from now on."""
        self._statuses.enter_graceful_shutdown()

    def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Return the health of one service; the empty name means the whole server."""
        answer = self._statuses.Check(request, context)
        if answer.status == health_pb2.HealthCheckResponse.SERVING and not self.is_well():
            return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)
        return answer

    def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> Iterator[health_pb2.HealthCheckResponse]:
        """Abort the call with UNIMPLEMENTED; the module's docstring has the reason."""
        del request
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "ask Check")
        yield
