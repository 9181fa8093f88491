"""RPC with which another datanode sends a complete replica."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

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
        """Own decoders by RPC name, for requests for which protobuf's decoder is too slow."""

    def ImportContainer(self, requests: Iterator[Any]) -> pb.ImportContainerResponse:
        """Receive a complete replica from another datanode. It becomes visible only when it is
        complete.

        gRPC's flow control slows down a sender that is faster than the disk.
        """
        arrived = self._importer.receive(requests)
        return pb.ImportContainerResponse(
            replica=report_messages.replica_report(arrived.facts),
            damaged_chunk_count=arrived.damaged_chunk_count,
        )
