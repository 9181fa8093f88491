"""The options of gRPC servers that limit connections, and the binding of addresses."""

from dataclasses import dataclass
from typing import Final

import grpc

from suture.errors import Code, RefusedError
from suture.wire.clients.channel import (
    HEADERS_BYTES_MAX,
    KEEPALIVE_MS,
    KEEPALIVE_TIMEOUT_MS,
    MESSAGE_BYTES_MAX,
    PORT_MAX,
)
from suture.wire.security.tls import Security
from suture.wire.server.blocked_calls import SLOW_S

LOOKAHEAD_BYTES: Final = 1024**2  # 1 GiB/s at a round trip of 1 ms
PING_INTERVAL_MS_MIN: Final = 10_000  # a client that pings more often is disconnected


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits on the age and the idle time of a connection.

    The server closes old connections, so that a caller that is no longer trusted does not remain
    connected. Running calls may finish within `grace_ms`. The longest call is a scan of a full
    container on a busy disk.
    """

    handshake_ms_max: int = 20_000  # after that, a silent new connection is closed
    idle_ms_max: int = 300_000  # time without a call; heartbeats keep an agent's connection
    age_ms_max: int = 3_600_000
    grace_ms: int = 6 * 3_600_000
    slow_s: float = SLOW_S  # a longer wait for a caller is ended if others need the thread


PATIENCE: Final = ConnectionLimits()


def server_options(
    streams_max: int,
    connections_max: int,
    *,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    answer_bytes_max: int = 0,
    patience: ConnectionLimits = PATIENCE,
) -> list[tuple[str, int]]:
    """Return gRPC's options of a server. They limit the resources that an unknown client can use.

    `answer_bytes_max` must be given if responses may be longer than requests.
    """
    return [
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.max_send_message_length", answer_bytes_max or message_bytes_max),
        ("grpc.max_metadata_size", HEADERS_BYTES_MAX),
        ("grpc.max_concurrent_streams", streams_max),
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.server_handshake_timeout_ms", patience.handshake_ms_max),
        ("grpc.max_connection_idle_ms", patience.idle_ms_max),
        ("grpc.max_connection_age_ms", patience.age_ms_max),
        ("grpc.max_connection_age_grace_ms", patience.grace_ms),
        (
            "grpc.so_reuseport",
            0,
        ),  # otherwise two servers on one port would share its calls
        ("grpc.http2.min_recv_ping_interval_without_data_ms", PING_INTERVAL_MS_MIN),
        ("grpc.keepalive_permit_without_calls", 1),
        # Bytes that a call may send before they are read; gRPC would let this grow to megabytes.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
        # A dead sender must not keep a thread and reserved space for ever.
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ]


def bind(server: grpc.Server, address: str, security: Security) -> int:
    """Bind a server to an address, with TLS if there are certificates. Return the port.

    Raise RefusedError(INVALID_CONFIG) if the address cannot be bound, or if it requires TLS and
    there are no certificates.
    """
    credentials = security.server_credentials(address)
    wanted = address.rpartition(":")[2]
    if wanted.isdecimal() and int(wanted) > PORT_MAX:  # gRPC would use its lower 16 bits
        raise RefusedError(
            Code.INVALID_CONFIG, f"cannot listen on {address}: a port is at most {PORT_MAX}"
        )
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError:  # grpc writes the cause to its own log only
        port = 0
    if port == 0:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot listen on {address}",
            hint="check HOST:PORT and other users of the port",
            address=address,
        )
    return port
