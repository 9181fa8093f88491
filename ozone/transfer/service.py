"""The service `IntraDatanodeProtocolService`, which transfers containers between datanodes.

The parts of an archive must be consecutive. An error is returned as a gRPC status with a text.
Ozone's sender treats every error status as a failure, and Ozone's SCM then chooses another source.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

import grpc
import structlog

from agent.store.replica_store import ReplicaStore
from merkle.replica import ContainerId
from ozone.datanode_server.error_translation import StatusTranslator, arriving
from ozone.transfer.entries import malformed
from ozone.transfer.import_admission import ImportAdmission, in_time
from ozone.transfer.incoming import ArchiveImporter
from ozone.transfer.messages import (
    BYTES,
    PART,
    PART_DATA,
    SERVICE,
    UPLOADED,
    parse_compression,
    parse_upload,
    parse_wish,
)
from ozone.transfer.outgoing import DAMAGED, ArchiveExport
from ozone.transfer.parts import gathered, join_parts
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.ports import Leases
from suture.wire.mapping import codec
from suture.wire.server.authorization import DONE, PLAINTEXT, Audit

ACTION: Final = "ImportContainer"
COMMON_NAME: Final = "x509_common_name"
REFUSALS_KEPT_MAX: Final = 10_000  # containers for which a refusal was logged

log = structlog.get_logger()


@dataclass(eq=False)
class ReplicationService:
    """Receives containers that Ozone's datanodes push, and sends containers that they pull.

    `request_scan` requests a scan of a replica, with the reason as its second argument. `turns`
    limits the number of concurrent pushes.
    """

    decoders = encoders = BYTES

    importer: ArchiveImporter
    store: ReplicaStore
    leases: Leases
    audit: Audit
    request_scan: Callable[[ContainerId, str], None]
    turns: ImportAdmission
    _: KW_ONLY
    lease_timeout_s: float
    monotonic_s: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._refused: dict[ContainerId, Code] = {}  # container id -> code of the logged refusal

    def download(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Send one container. The container cannot change during the call."""
        with StatusTranslator(context, SERVICE.full_name):
            wish = parse_wish(request)
            container_id = codec.parse_container_id(wish.container_id, "containerID")
            export = ArchiveExport(self.store, container_id)
            try:
                with self.leases.share(container_id, self.lease_timeout_s):
                    data = export.stream(parse_compression(wish.compression))
                    yield from _parts(container_id, data)
            except RefusedError as error:
                if error.code is Code.CHECKSUM_MISMATCH:
                    self.request_scan(container_id, DAMAGED)
                raise

    def upload(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Receive one container. The agent serves it before it sends the answer."""
        with StatusTranslator(context, SERVICE.full_name):
            parts = _Parts(requests)
            result = Code.CONTAINER_INTERNAL_ERROR.value
            try:
                with self.turns.admit(context.is_active):
                    data = in_time(parts.data(), self.monotonic_s)
                    self.importer.receive(parts.container_id, data, parts.compression)
                result = DONE
            except SutureError as error:
                result = error.code.value
                self._log_refusal(parts.container_id, error)
                raise
            finally:
                self.audit.record(
                    ACTION,
                    result,
                    who=_caller_of(context),
                    place=str(context.peer()),
                    container_id=parts.container_id,
                    protocol="ozone",
                )
        return UPLOADED

    def _log_refusal(self, container_id: ContainerId, error: SutureError) -> None:
        """Log the refusal of a container, but only once for the same reason.

        Ozone's SCM orders the copy again after a refusal.
        """
        if not isinstance(error, RefusedError) or self._refused.get(container_id) is error.code:
            return
        if len(self._refused) >= REFUSALS_KEPT_MAX:
            self._refused.clear()
        self._refused[container_id] = error.code
        log.warning("ozone_import_refused", container_id=container_id, error=str(error))


def _caller_of(context: grpc.ServicerContext) -> str:
    """Return the common name in the TLS certificate of the caller."""
    names: Any = context.auth_context().get(COMMON_NAME, ())
    return names[0].decode("utf-8", "replace") if names else PLAINTEXT


def _parts(container_id: ContainerId, data: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the messages of an archive, with about a mebibyte of data each.

    A field of the last message marks the end.
    """
    for part in gathered(data):
        about = PART(
            container_id=container_id,
            offset=part.position,
            length=part.size_bytes,
            is_last=part.is_last,
        )
        yield part.encoded(about.SerializeToString(), PART_DATA)


class _Parts:
    """The parts of one archive. The first part names the container and the compression.

    The constructor raises RefusedError if the first part is invalid. `data` raises it if a later
    part is invalid.
    """

    def __init__(self, requests: Iterator[bytes]) -> None:
        self._requests = arriving(requests)
        first = next(self._requests, None)
        if first is None:
            raise malformed("there is nothing of it")
        self._first = parse_upload(first)
        self.container_id = codec.parse_container_id(self._first.container_id, "containerID")
        self.compression = parse_compression(self._first.compression)

    def data(self) -> Iterator[bytes]:
        """Return the bytes of the archive as they arrive."""
        return join_parts(self.container_id, self._each())

    def _each(self) -> Iterator[Any]:
        yield self._first
        for data in self._requests:
            yield parse_upload(data)
