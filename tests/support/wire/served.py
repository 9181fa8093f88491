"""Adds services of proto/ to plain gRPC servers, which lack the limits of the product's servers."""

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from suture.wire.mapping.rpc_services import method_handlers


def add_service(server: grpc.Server, service: ServiceDescriptor, servicer: object) -> None:
    """Add the RPCs that a servicer has to a server."""
    handlers = method_handlers(service, [servicer])
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service.full_name, handlers)]
    )
