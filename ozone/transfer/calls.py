"""Calls between Ozone's datanodes that transfer complete containers.

Every field is sent, even if it is zero, because Ozone's messages require some of them.
"""

from collections.abc import Callable, Iterator
from typing import Self

from merkle.replica import ContainerId
from ozone.transfer.messages import (
    BYTES,
    SERVICE,
    UPLOADING,
    UPLOADING_DATA,
    WISH,
    Compression,
    parse_part,
)
from ozone.transfer.parts import gathered, join_parts
from suture.errors import SutureError
from suture.wire.clients.channel import open_channel, stream, upload
from suture.wire.mapping.rpc_services import Stub
from suture.wire.security.tls import Security


class ArchivePeer:
    """A client of the port REPLICATION of a datanode.

    Every call that fails raises SutureError.
    """

    def __init__(self, address: str, security: Security) -> None:
        self.address = address
        self._channel = open_channel(address, security)
        self._stub = Stub(self._channel, SERVICE, encoders=BYTES, decoders=BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def push(
        self, parts: Iterator[bytes], *, timeout_s: float, must_end: Callable[[], bool]
    ) -> None:
        """Send the messages of an archive (`sent_parts`) to the datanode.

        Cancel the call when `must_end` returns True.
        """
        try:
            upload(self._stub.upload, parts, timeout_s=timeout_s, must_end=must_end)
        except SutureError as error:
            raise self._named(error) from error

    def pull(
        self, container_id: ContainerId, compression: Compression, *, timeout_s: float
    ) -> Iterator[bytes]:
        """Start to fetch an archive from the datanode. Return an iterator over its bytes."""
        wish = WISH(container_id=container_id, offset=0, compression=compression)
        answers = stream(self._stub.download, wish.SerializeToString(), timeout_s=timeout_s)

        def pieces() -> Iterator[bytes]:
            try:
                yield from join_parts(container_id, map(parse_part, answers))
            except SutureError as error:
                raise self._named(error) from error

        return pieces()

    def hang_up(self) -> None:
        """Cancel the running call. The thread that waits for the call gets an error."""
        self._channel.close()

    def _named(self, error: SutureError) -> SutureError:
        """Return an error of the same class, whose message names the peer."""
        return type(error)(error.code, f"datanode {self.address}: {error}", hint=error.hint)


def sent_parts(
    container_id: ContainerId, data: Iterator[bytes], compression: Compression, size_bytes: int
) -> Iterator[bytes]:
    """Yield the messages of an archive.

    `size_bytes` is the size of the container, with which the target chooses a volume.
    """
    for part in gathered(data):
        if part.size_bytes or not part.position:
            about = UPLOADING(
                container_id=container_id,
                offset=part.position,
                compression=compression,
                size=size_bytes,
            )
            yield part.encoded(about.SerializeToString(), UPLOADING_DATA)
