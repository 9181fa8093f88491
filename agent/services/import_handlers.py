"""Handler of the RPC by which another datanode sends a complete replica."""

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
        """Functions that decode requests, by RPC name. They replace protobuf's decoder where it is
        too slow."""

    def ImportContainer(self, requests: Iterator[Any]) -> pb.ImportContainerResponse:
        """Receive a complete replica from another datanode.

        The replica becomes visible only when all its data has arrived. If the sender is faster than
        the local disk, gRPC's flow control slows down the sender.
        """
        arrived = self._importer.receive(requests)
        return pb.ImportContainerResponse(
            replica=report_messages.replica_report(arrived.facts),
            damaged_chunk_count=arrived.damaged_chunk_count,
        )
