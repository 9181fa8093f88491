"""Reference implementation of the checksum class of a container, for `classifier`."""

from collections import Counter

from tests.support.verification.container_case import TREE, Case
from tests.support.verification.snapshots import ReplicaRow


def compare(case: Case) -> tuple[str, frozenset[str], bool, bool, bool]:
    """Return the checksum class, the datanodes in the minority, and three flags: tombstones differ,
    a silent replica differs, roots differ."""
    trees = [r for r in case.replicas if r.state in TREE]
    countable = [r for r in trees if case.up(r)]
    copies = Counter(r.replica_index for r in countable)
    is_ec = case.box.replication_type == "EC"
    compared = [r for r in countable if not is_ec or copies[r.replica_index] > 1]
    known = [r for r in compared if r.root is not None and r.tree_algorithm is not None]
    groups: dict[tuple[int, str | None], Counter[int | None]] = {}
    for r in known:
        groups.setdefault((r.replica_index, r.tree_algorithm), Counter())[told(r, known)] += 1
    minority: set[str] = set()
    split = disputed = False
    for key, votes in groups.items():
        if len(votes) < 2:
            continue
        disputed = True
        (first, most), (_, second) = votes.most_common(2)
        if most < 2 or most == second:
            split = True
            continue
        minority |= {
            r.datanode_id
            for r in known
            if (r.replica_index, r.tree_algorithm) == key and told(r, known) != first
        }
    tombstones = any(
        a.tombstones_checksum != b.tombstones_checksum
        for a in known
        for b in known
        if same(a, b)
        and told(a, known) == told(b, known)
        and None not in (a.tombstones_checksum, b.tombstones_checksum)
    )
    silent = any(
        r.root is not None
        and any(
            root != told(r, known) for root in groups.get((r.replica_index, r.tree_algorithm), ())
        )
        for r in trees
        if not case.up(r)
    )
    indexes = [index for index, _ in groups]
    mixed = len(indexes) != len(set(indexes))
    explained = any(
        same(a, b) and a.root != b.root and told(a, known) == told(b, known)
        for a in known
        for b in known
        if len(groups[(a.replica_index, a.tree_algorithm)]) == 1
    )
    word = _class(case, countable, compared, known, (split, disputed, mixed, explained))
    return word, frozenset(minority), tombstones, silent, disputed


def same(a: ReplicaRow, b: ReplicaRow) -> bool:
    """Return True if two replicas should be copies of each other and have trees that can be
    compared."""
    return (a.replica_index, a.tree_algorithm) == (b.replica_index, b.tree_algorithm)


def told(r: ReplicaRow, known: list[ReplicaRow]) -> int | None:
    """Return the root to compare: the settled root if all replicas that should be equal have a
    settled root, otherwise the reported root."""
    is_read = all(other.settled_root is not None for other in known if same(r, other))
    return r.settled_root if is_read and r.settled_root is not None else r.root


def _class(
    case: Case,
    countable: list[ReplicaRow],
    compared: list[ReplicaRow],
    known: list[ReplicaRow],
    votes: tuple[bool, bool, bool, bool],
) -> str:
    split, disputed, mixed, explained = votes
    rules = [
        (case.box.state not in {"CLOSED", "QUASI_CLOSED"}, "NOT_COMPARABLE"),
        (not case.replicas, "EMPTY"),
        (not countable, "NOT_COMPARABLE"),
        (all(r.is_empty for r in countable), "EMPTY"),
        (any(r.is_contradictory for r in countable), "CONTRADICTORY"),
        (split, "MISMATCH_SPLIT"),
        (disputed, "MISMATCH_MINORITY"),
        (not compared, "NOT_COMPARABLE"),
        (len(compared) == 1, "SINGLE"),
        (not known, "UNKNOWN"),
        (mixed, "NOT_COMPARABLE"),
        (len(known) < len(compared), "PARTIAL"),
        (explained, "EXPLAINED"),
    ]
    return next((word for applies, word in rules if applies), "MATCH")
