"""How soon a channel connects to a peer that is back."""

import socket
import time
from concurrent.futures import Future
from itertools import pairwise
from typing import Final

from suture.wire.clients.channel import open_channel

ATTEMPTS: Final = 7
WAIT_S: Final = 120.0
GROWTH_MAX: Final = 2.5  # gRPC's own pauses grow by 1.6 each time: ninefold in five
REQUEST: Final = "/suture.v1.Scm/SafeMode"


def test_pauses_between_attempts_to_connect_do_not_grow() -> None:
    """A server that accepts and closes each connection sees attempts at the same pace."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)
        with open_channel(f"127.0.0.1:{server.getsockname()[1]}") as channel:
            call: Future[bytes] = channel.unary_unary(REQUEST).future(b"", wait_for_ready=True)
            at_s = []
            for _ in range(ATTEMPTS):
                server.accept()[0].close()
                at_s.append(time.monotonic())
            call.cancel()

    pauses_s = [later - at for at, later in pairwise(at_s)]
    assert max(pauses_s[-2:]) <= GROWTH_MAX * max(pauses_s[:2])
