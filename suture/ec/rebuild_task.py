"""The request for a reconstruction, and its result, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from merkle.replica import ContainerId
from suture.ec.scheme import Scheme
from suture.errors import Code, RefusedError


@dataclass(frozen=True, slots=True)
class ShardLocation:
    """A shard of a container: its datanode, address and index."""

    datanode_id: str
    address: str
    index: int


@dataclass(frozen=True, slots=True)
class RebuildTask:
    """The request to rebuild the shards `targets` from the shards `sources`."""

    container_id: ContainerId
    scheme: Scheme
    sources: tuple[ShardLocation, ...]
    targets: tuple[ShardLocation, ...]

    def check(self) -> None:
        """Raise RefusedError if the task contradicts itself. The datanodes are not queried."""
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
    """Counts and facts of one reconstruction of shards. Only the coordinating thread uses it."""

    read_bytes: int = 0
    written_bytes: int = 0
    block_count: int = 0
    orphans: dict[int, str] = field(default_factory=dict)  # block id -> why it was left out
    replaced: dict[str, str] = field(default_factory=dict)  # datanode id -> its fault


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """Result of a reconstruction of shards. `orphans` maps each block that was left out to the
    reason. `replaced` maps each datanode that failed to its fault."""

    container_id: ContainerId
    read_bytes: int
    written_bytes: int
    block_count: int
    orphans: Mapping[int, str]
    replaced: Mapping[str, str]
    duration_ms: int
