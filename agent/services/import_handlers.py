"""The call by which another datanode pushes a whole replica."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc

from agent.services import report_messages
from agent.services.service_protocols import Importer
from suture.wire.v1 import datanode_pb2 as pb


class ImportHandlers:
    """Handler of ImportContainer."""

    def __init__(self, importer: Importer) -> None:
        self._importer = importer
        self.decoders: Mapping[str, Callable[[bytes], Any]] = {
            "ImportContainer": importer.read_part
        }
        """Decoders of requests whose messages are too large for protobuf's own decoder."""

    def ImportContainer(
        self, requests: Iterator[Any], context: grpc.ServicerContext
    ) -> pb.ImportContainerResponse:
        """Receive a whole replica from another datanode; it becomes visible only when complete.

        gRPC's flow control slows down a sender that is faster than the disk.
        """
        del context
        arrived = self._importer.receive(requests)
        return pb.ImportContainerResponse(
            replica=report_messages.replica_report(arrived.facts),
            bytes_received=arrived.data_bytes,
            damaged_chunk_count=arrived.damaged_chunk_count,
        )
