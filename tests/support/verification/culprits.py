"""Clusters with known causes of damage, to test which members the blame analysis names.

A member is a volume, a datanode, a rack or a version. The clusters contain everything that can hide
a culprit or incriminate an innocent member: volumes of very different size, erasure-coded
containers, replicas that were not scanned, silent nodes, trees of another algorithm, and damage
that affects all members. Containers and replicas go through the real judge and the real count of
votes. The random choice of culprits is in this module only; the code under test does not see it.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from health.blame import Suspect, suspects
from health.judge import judge
from health.rules import Rules
from spark_verify.input_columns import TABLES
from spark_verify.tasks.judge_batches import cut_of, nodes_of
from spark_verify.tasks.verdict_rows import votes
from tests.support.verification.snapshots import ContainerRow, NodeRow, ReplicaRow, SnapshotRows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CONTAINERS: Final = 24_000
REPLICAS: Final = 3
RACKS_MAX: Final = 2
VOLUMES_MIN: Final = 3
"""A single volume may be a culprit only if its node has at least this number of volumes."""

EC_SHARE: Final = 0.15
UNSCANNED_SHARE: Final = 0.1
SILENT_SHARE: Final = 0.05
OLD_EVERY: Final = 16
TRIES: Final = 1_000
"""Maximum number of tries to draw culprits. Most tries fail, because most volumes have too few
replicas to be a detectable culprit."""
LOST_MIN: Final = 15
"""Number of votes that a culprit must lose on average, in addition to the general rate."""

Named = frozenset[tuple[str, str]]


def summed_votes(cast: pa.Table) -> list[dict[str, object]]:
    """Return votes (one row each) in the form of the rows of `votes/`."""
    ones = cast.append_column("one", pa.array(np.ones(len(cast), dtype=np.int64)))
    lost = pa.array(cast["is_lost"].to_numpy(zero_copy_only=False).astype(np.int64))
    keys = ["datanode_id", "volume_id", "against"]
    table = ones.append_column("losses", lost).group_by(keys)
    counted = table.aggregate([("one", "sum"), ("losses", "sum")])
    names = [*keys, "exposed", "lost"]
    rows: list[dict[str, object]] = (
        counted.select([*keys, "one_sum", "losses_sum"]).rename_columns(names).to_pylist()
    )
    return rows


@dataclass(slots=True)
class Cluster:
    """A cluster as numpy columns: the node of each volume (a unit), its share of the data, and the
    probability with which it damages a replica."""

    random: np.random.Generator
    node_rack: Ints
    node_version: Ints
    unit_node: Ints
    unit_number: Ints
    weight: Floats
    damaged: Floats
    guilty: set[tuple[str, str]] = field(default_factory=set)
    bug: tuple[int, float] = (-1, 0.0)
    """The number of a version with a bug, and the share of containers for which this version writes
    a different tree. The number is -1 if no version has a bug."""
    silent: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """One value per node: True if it does not answer."""
    units: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    """One row per container, with the volume of each replica."""

    @classmethod
    def drawn(cls, seed: int, base: float) -> "Cluster":
        """Return a cluster in which all members cause the same rate of damage."""
        random = np.random.default_rng(seed)
        racks = int(random.integers(8, 13))
        nodes = racks * int(random.integers(5, 11))
        counts = random.choice([1, 3, 4, 6, 8], nodes, p=[0.1, 0.25, 0.35, 0.2, 0.1])
        unit_node = np.repeat(np.arange(nodes), counts)
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        share = random.uniform(0.2, 0.5)
        return cls(
            random,
            np.arange(nodes) % racks,
            np.where(random.random(nodes) < share, 1, 0),
            unit_node,
            np.arange(len(unit_node)) - starts,
            random.lognormal(0, 0.7, len(unit_node)),
            np.full(len(unit_node), float(base)),
            silent=random.random(nodes) < SILENT_SHARE,
        )

    def place(self) -> None:
        """Place the replicas of each container on different nodes, at random. Volumes with a larger
        `weight` get more replicas."""
        count = len(self.unit_node)
        keys = self.weight / self.weight.sum()
        chosen = self.random.choice(count, (CONTAINERS, 3 * REPLICAS), p=keys)
        found = np.empty((CONTAINERS, REPLICAS), dtype=np.int64)
        found[:, 0] = chosen[:, 0]
        for i in range(1, REPLICAS):
            taken = self.unit_node[found[:, :i]]
            left = np.full(CONTAINERS, -1)
            for column in chosen.T:
                is_free = (left < 0) & (self.unit_node[column][:, None] != taken).all(axis=1)
                left[is_free] = column[is_free]
            spare = np.flatnonzero(left < 0)
            for row in spare.tolist():
                others = np.flatnonzero(~np.isin(self.unit_node, taken[row]))
                left[row] = self.random.choice(others)
            found[:, i] = left
        self.units = found

    def name(self, level: str, member: int) -> tuple[str, str]:
        """Return the display name of a member of a level."""
        if level == "volume":
            node, number = self.unit_node[member], self.unit_number[member]
            return level, f"dn-{node:04d} v{number}"
        words = {"datanode": f"dn-{member:04d}", "rack": f"/r{member:02d}"}
        return level, words.get(level, f"1.{member}")

    def members(self, level: str) -> Ints:
        """Return, for each volume, the number of the member of a level to which it belongs. A level
        is "volume", "datanode", "rack" or "version"."""
        return {
            "volume": np.arange(len(self.unit_node)),
            "datanode": self.unit_node,
            "rack": self.node_rack[self.unit_node],
            "version": self.node_version[self.unit_node],
        }[level]

    def accuse(self, level: str, member: int, share: float) -> None:
        """Make a member a culprit that damages this share of replicas, in addition to other
        causes."""
        own = self.members(level) == member
        self.damaged[own] = 1 - (1 - self.damaged[own]) * (1 - share)
        self.guilty.add(self.name(level, member))

    def exposed(self, level: str, member: int) -> float:
        """Return approximately the number of votes in which a member takes part."""
        is_vote = ~(self.silent | self.is_old)[self.unit_node[self.units]].any(axis=1)
        own = (self.members(level) == member)[self.units[is_vote]]
        return float(own.sum() * (1 - EC_SHARE) * (1 - UNSCANNED_SHARE) ** REPLICAS)

    @property
    def is_old(self) -> NDArray[np.bool_]:
        """Return one value per node: True if it makes trees of another algorithm."""
        found: NDArray[np.bool_] = np.arange(len(self.node_rack)) % OLD_EVERY == OLD_EVERY - 1
        return found

    def judged(self) -> list[Suspect]:
        """Damage replicas, judge the containers, and count the votes; return the members that the
        blame analysis names."""
        nodes = self._nodes()
        own = nodes_of(nodes)
        containers, replicas = self._rows()
        ops = TABLES["pending_ops"].empty_table()
        cut = cut_of(containers, replicas, ops, own)
        version = dict(
            zip(nodes["datanode_id"].to_pylist(), nodes["version"].to_pylist(), strict=True)
        )
        versions = tuple(version[name] for name in own.names)
        cast = votes(judge(cut.batch, Rules()), cut, versions)
        return suspects(summed_votes(cast), nodes.to_pylist())

    def _nodes(self) -> pa.Table:
        rows = [
            NodeRow(
                f"dn-{i:04d}",
                rack=f"/r{self.node_rack[i]:02d}",
                version=f"1.{self.node_version[i]}",
                health="STALE" if self.silent[i] else "HEALTHY",
            )
            for i in range(len(self.node_rack))
        ]
        return SnapshotRows(nodes=rows).table("nodes")

    def _rows(self) -> tuple[pa.Table, pa.Table]:
        random, ids = self.random, np.arange(1, CONTAINERS + 1)
        is_ec = random.random(CONTAINERS) < EC_SHARE
        root = np.repeat(ids[:, None] * 1_000_003, REPLICAS, axis=1)
        index = np.where(is_ec[:, None], np.arange(1, REPLICAS + 1), 0)
        root += index
        has_bug = (random.random(CONTAINERS) < self.bug[1])[:, None]
        root = np.where(has_bug & (self.members("version")[self.units] == self.bug[0]), -root, root)
        is_hit = random.random(self.units.shape) < self.damaged[self.units]
        root = np.where(is_hit, random.integers(1 << 40, 1 << 60, self.units.shape), root)
        unit = self.units.ravel()
        unknown = random.random(len(unit)) < UNSCANNED_SHARE
        columns = {
            "container_id": np.repeat(ids, REPLICAS),
            "datanode_id": _words(
                [f"dn-{i:04d}" for i in range(len(self.node_rack))], self.unit_node[unit]
            ),
            "replica_index": index.ravel().astype(np.int32),
            "volume_id": _words([f"v{i}" for i in range(9)], self.unit_number[unit]),
            "tree_algorithm": _words(["xxh3_64", "crc32c"], self.is_old[self.unit_node[unit]] * 1),
            "root": pa.array(root.ravel(), mask=unknown),
        }
        containers = {
            "container_id": ids,
            "replication_type": _words(["RATIS", "EC"], is_ec.astype(np.int64)),
            "ec_data": pa.array(np.where(is_ec, 2, 0).astype(np.int32), mask=~is_ec),
            "ec_parity": pa.array(np.where(is_ec, 1, 0).astype(np.int32), mask=~is_ec),
        }
        return (
            _table("containers", ContainerRow(0), containers),
            _table("replicas", ReplicaRow(0, ""), columns),
        )


def _words(words: list[str], codes: Ints) -> pa.Array:
    return pa.array(words).take(pa.array(codes))


def _table(name: str, row: object, columns: dict[str, object]) -> pa.Table:
    """Return the table `name` with these columns. All rows have the values of `row` in the other
    columns."""
    schema = TABLES[name]
    count = len(columns["container_id"])  # type: ignore[arg-type]
    return pa.table(
        {
            one.name: columns[one.name]
            if one.name in columns
            else pa.repeat(pa.scalar(getattr(row, one.name), one.type), count)
            for one in schema
        }
    ).cast(pa.schema([(one.name, one.type) for one in schema]))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The culprits of one cluster, and the members that were named."""

    guilty: Named
    named: Named

    @property
    def is_exact(self) -> bool:
        """Return True if exactly the culprits were named."""
        return self.guilty == self.named


def outcome(cluster: Cluster) -> Outcome:
    """Return the result of the blame analysis of a cluster."""
    named = frozenset((suspect.attribute, suspect.value) for suspect in cluster.judged())
    return Outcome(frozenset(cluster.guilty), named)


def clean(seed: int) -> Cluster:
    """Return a cluster without damage."""
    return _placed(Cluster.drawn(seed, 0))


def even(seed: int) -> Cluster:
    """Return a cluster in which all members cause the same rate of damage, low or high."""
    cluster = Cluster.drawn(seed, 0)
    cluster.damaged[:] = 10 ** cluster.random.uniform(-4, -1.3)
    return _placed(cluster)


def uneven(seed: int) -> Cluster:
    """Return a cluster in which all members cause damage, at rates that differ randomly between
    volumes and between nodes."""
    cluster = even(seed)
    random = cluster.random
    disks = random.gamma(1 / 0.15, 0.15, len(cluster.damaged))
    nodes = random.gamma(1 / 0.05, 0.05, len(cluster.node_rack))
    cluster.damaged *= disks * nodes[cluster.unit_node]
    return cluster


def crowded(seed: int) -> Cluster:
    """Return a cluster in which all members cause the same rate of damage, and a few volumes have
    nearly all data."""
    cluster = Cluster.drawn(seed, 0)
    cluster.damaged[:] = 10 ** cluster.random.uniform(-3.5, -1.3)
    cluster.weight = cluster.weight**3
    return _placed(cluster)


def few(seed: int) -> Cluster:
    """Return a cluster with one to five culprits, which are volumes, datanodes or racks."""
    return _accused(seed, 1, 5)


def many(seed: int) -> Cluster:
    """Return a cluster with six to twenty culprits."""
    return _accused(seed, 6, 20)


def nested(seed: int) -> Cluster:
    """Return a cluster with culprits within each other: a volume of a node of a rack, or a node of
    a rack with a version."""
    cluster = _placed(Cluster.drawn(seed, 0.0002))
    random = cluster.random
    sizes = np.bincount(cluster.unit_node)
    exposed = [cluster.exposed("datanode", i) * (sizes[i] >= 3) for i in range(len(sizes))]
    node = int(np.argmax(exposed * (cluster.node_version == 1)))
    own = np.flatnonzero(cluster.unit_node == node)
    volume = int(own[np.argmin(np.abs(cluster.weight[own] - np.median(cluster.weight[own])))])
    rack = "rack", int(cluster.node_rack[node])
    if random.random() < 0.5:
        chain = [(*rack, 0.01), ("datanode", node, 0.1), ("volume", volume, 0.8)]
    else:
        chain = [("version", 1, 0.005), (*rack, 0.05), ("datanode", node, 0.5)]
    for level, member, damaged in chain:
        cluster.accuse(level, member, damaged)
    return cluster


def outvoted(seed: int) -> Cluster:
    """Return a cluster in which most nodes have a version with a bug. The few nodes with another
    version write correct trees, and lose the votes."""
    cluster = Cluster.drawn(seed, 0.0005)
    random = cluster.random
    cluster.node_version[:] = random.random(len(cluster.node_version)) < random.uniform(0.1, 0.3)
    cluster.place()
    cluster.bug = (0, float(random.uniform(0.02, 0.4)))
    cluster.guilty = {("versions", "1.0 or 1.1")}
    return cluster


def _placed(cluster: Cluster) -> Cluster:
    cluster.place()
    return cluster


def _accused(seed: int, low: int, high: int) -> Cluster:
    """Return a cluster with `low` to `high` random culprits that lose enough votes to be detected.
    At most a third of a rack consists of culprits."""
    cluster = _placed(Cluster.drawn(seed, 0.0005))
    random = cluster.random
    wanted = int(random.integers(low, high + 1))
    crowd = _Crowd(cluster)
    for _ in range(TRIES):
        if len(cluster.guilty) == wanted:
            break
        level = str(random.choice(["volume", "datanode", "rack"], p=[0.6, 0.35, 0.05]))
        damaged = float(random.uniform(0.05, 0.6)) / (4 if level == "rack" else 1)
        unit = int(random.integers(len(cluster.unit_node)))
        member = int(cluster.members(level)[unit])
        if cluster.exposed(level, member) * damaged >= LOST_MIN and crowd.takes(level, unit):
            cluster.accuse(level, member, damaged)
    return cluster


class _Crowd:
    """The members that are already culprits. New culprits must not overlap them; `nested` tests
    culprits within each other."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sizes = np.bincount(cluster.unit_node)
        self._nodes: set[int] = set()
        self._racks: set[int] = set()

    def takes(self, level: str, unit: int) -> bool:
        """Record the member of a level to which a unit belongs; return False if it overlaps another
        culprit."""
        node = int(self._cluster.unit_node[unit])
        rack = int(self._cluster.node_rack[node])
        own = set(np.flatnonzero(self._cluster.node_rack == rack).tolist())
        bad = len(own & self._nodes)
        if level == "rack":
            if bad or len(self._racks) == RACKS_MAX:
                return False
            self._racks.add(rack)
            self._nodes |= own
            return True
        is_one_of_few = level == "volume" and self._sizes[node] < VOLUMES_MIN
        if node in self._nodes or (bad + 1) * 3 > len(own) or is_one_of_few:
            return False
        self._nodes.add(node)
        return True
