"""The description of a reconstruction of shards, and of its result."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from merkle.replica import ContainerId
from suture.ec.scheme import Scheme
from suture.errors import Code, RefusedError


@dataclass(frozen=True, slots=True)
class ShardLocation:
    """A shard of a container: the id and the address of its datanode, and its index."""

    datanode_id: str
    address: str
    index: int


@dataclass(frozen=True, slots=True)
class RebuildTask:
    """A request to rebuild the shards `targets` of a container from the shards `sources`."""

    container_id: ContainerId
    scheme: Scheme
    sources: tuple[ShardLocation, ...]
    targets: tuple[ShardLocation, ...]

    def check(self) -> None:
        """Raise RefusedError if the sources and targets are inconsistent. The datanodes are not
        called."""
        sources = self.scheme.checked(shard.index for shard in self.sources)
        targets = self.scheme.checked(shard.index for shard in self.targets)
        if not targets or len(targets) != len(self.targets):
            raise self._malformed("its targets are not one for each shard to rebuild")
        both = set(sources) & set(targets)
        if both:
            raise self._malformed(f"shards {sorted(both)} are sources and targets at once")
        places = [shard.datanode_id for shard in (*self.sources, *self.targets)]
        if len(set(places)) != len(places):
            raise self._malformed("a datanode is named twice")
        if len(sources) < self.scheme.data_count:
            raise RefusedError(
                Code.INELIGIBLE,
                f"container {self.container_id}: {self.scheme} needs {self.scheme.data_count} "
                f"sources, the command names {len(sources)}",
                hint="start a datanode that has another shard",
                container_id=self.container_id,
            )

    def _malformed(self, what: str) -> RefusedError:
        return RefusedError(
            Code.MALFORMED_REQUEST,
            f"reconstruction of container {self.container_id}: {what}",
            container_id=self.container_id,
        )


@dataclass(slots=True)
class RebuildStats:
    """Counts of a running reconstruction, and the blocks and datanodes that failed. Only one thread
    uses the object."""

    read_bytes: int = 0
    written_bytes: int = 0
    block_count: int = 0
    orphans: dict[int, str] = field(default_factory=dict)  # block id -> why it was left out
    replaced: dict[str, str] = field(default_factory=dict)  # datanode id -> its fault


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """The result of a reconstruction of shards.

    `orphans` has the reason for each block that could not be rebuilt, by block id. `replaced` has
    the fault of each failed datanode, by datanode id.
    """

    container_id: ContainerId
    read_bytes: int
    written_bytes: int
    block_count: int
    orphans: Mapping[int, str]
    replaced: Mapping[str, str]
    duration_ms: int
