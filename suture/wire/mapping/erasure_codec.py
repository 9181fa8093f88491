"""Converts erasure codes and reconstructions to messages and back."""

from typing import Final

from suture.ec.rebuild_task import RebuildTask, Reconstruction, ShardLocation
from suture.ec.scheme import CodecName, Scheme
from suture.errors import Code, RefusedError
from suture.wire.mapping import codec
from suture.wire.mapping.message_map import Field, MessageMap
from suture.wire.v1 import scm_pb2

ORPHANS_MAX: Final = 1_000  # maximum number of orphans in an answer, which also has their total
SCHEME: Final = MessageMap(scm_pb2.EcScheme, Scheme, data="data_count", parity="parity_count")
RECONSTRUCTION: Final = MessageMap(
    scm_pb2.ReconstructOutcome,
    Reconstruction,
    bytes_read="read_bytes",
    bytes_written="written_bytes",
    orphan_count=Field("orphans", len),
    orphan_local_ids=Field("orphans", lambda orphans: sorted(orphans)[:ORPHANS_MAX]),
    replaced_sources=Field("replaced", sorted),
)


def parse_scheme_message(message: scm_pb2.EcScheme, where: str) -> Scheme:
    """Convert the message of an erasure code. Raise RefusedError if the code is not supported."""
    try:
        name = CodecName(message.codec)
    except ValueError:
        raise RefusedError(
            Code.NO_SUCH_ALGORITHM,
            f"{where}.codec: {message.codec!r} is unknown",
            hint=f"known are {', '.join(CodecName)}",
            field=f"{where}.codec",
        ) from None
    return Scheme(name, message.data, message.parity, message.cell_bytes)


def parse_order(command: scm_pb2.ReconstructCommand) -> RebuildTask:
    """Convert a command to reconstruct shards to a task. Raise RefusedError if the command is
    invalid."""
    return RebuildTask(
        container_id=codec.parse_container_id(command.container_id, "reconstruct.container_id"),
        scheme=parse_scheme_message(command.scheme, "reconstruct.scheme"),
        sources=tuple(_shard(item, "reconstruct.sources") for item in command.sources),
        targets=tuple(_shard(item, "reconstruct.targets") for item in command.targets),
    )


def _shard(message: scm_pb2.EcShard, where: str) -> ShardLocation:
    return ShardLocation(
        codec.parse_datanode_id(message.datanode.datanode_id, f"{where}.datanode.datanode_id"),
        codec.parse_text(message.datanode.address, f"{where}.datanode.address"),
        codec.parse_int(
            message.replica_index,
            f"{where}.replica_index",
            low=1,
            high=codec.REPLICA_INDEX_MAX,
        ),
    )
