"""Do the replicas of a container hold the same bytes? The checksum classes, and the vote.

Only replicas that can answer count: state CLOSED, QUASI_CLOSED or UNHEALTHY, on a reachable node.
For EC only replicas of the same index are comparable; a root of another tree algorithm is never
compared; a root that is not known is never equal to anything.

The vote orders work, it never decides truth: which bytes are right is known only to the datanode
that reads them against the checksums written with them.

    UNKNOWN             no root is known                      -> scan
    PARTIAL             the known roots agree, some are not known -> scan
    MATCH               all roots known and equal
    CONTRADICTORY       a replica reports that a peer contradicts it though both are right by their
                        own rows, whatever the roots say: a person decides
    MISMATCH_MINORITY   roots differ; one is held by at least two and by more than any other
    MISMATCH_SPLIT      roots differ and no such majority exists
    NOT_COMPARABLE      nothing that may be compared with anything
    SINGLE              one replica answers
    EMPTY               no replica, or none that holds a block
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark_verify.rows import TREE_STATES

CLASSES: Final = (
    "CONTRADICTORY",
    "MISMATCH_SPLIT",
    "MISMATCH_MINORITY",
    "PARTIAL",
    "UNKNOWN",
    "NOT_COMPARABLE",
    "SINGLE",
    "EMPTY",
    "MATCH",
)
"""From worst to best, the order in which reports list them."""

MAJORITY_MIN: Final = 2
"""One replica alone is no majority, however small the others are."""

COMPARED_CONTAINER_STATES: Final = ("CLOSED", "QUASI_CLOSED")


def compare(cases: DataFrame) -> DataFrame:
    """Add checksum_class, votes, minority, tombstones_differ and is_unreachable_different.

    `votes` is one element per distinct known root: index, algorithm, root, count, is_majority.
    `minority` lists the datanodes whose root differs from the majority of their index.
    """
    return (
        cases.withColumns({"countable": _countable(), "unreachable": _unreachable()})
        .withColumn("compared", _compared())
        .withColumn("known", f.filter("compared", _has_root))
        .withColumn("votes", _votes())
        .withColumn("votes", _with_majority(f.col("votes")))
        .withColumns(
            {
                "minority": _minority(),
                "tombstones_differ": _tombstones_differ(),
                "is_unreachable_different": _unreachable_differs(),
                "checksum_class": _checksum_class(),
            }
        )
    )


def _countable() -> Column:
    return f.filter("replicas", lambda r: r["state"].isin(*TREE_STATES) & r["is_reachable"])


def _unreachable() -> Column:
    return f.filter("replicas", lambda r: r["state"].isin(*TREE_STATES) & ~r["is_reachable"])


def _compared() -> Column:
    """The countable replicas that have a companion; for EC, one of the same index."""
    countable = f.col("countable")
    paired = f.filter(
        countable,
        lambda r: (
            f.size(f.filter(countable, lambda o: o["replica_index"] == r["replica_index"])) > 1
        ),
    )
    return f.when(f.col("replication_type") == "EC", paired).otherwise(countable)


def _has_root(replica: Column) -> Column:
    return replica["root"].isNotNull() & replica["tree_algorithm"].isNotNull()


def _key(replica: Column) -> Column:
    return f.struct(
        replica["replica_index"].alias("index"),
        replica["tree_algorithm"].alias("algorithm"),
        replica["root"].alias("root"),
    )


def _votes() -> Column:
    keys = f.transform("known", _key)
    return f.transform(
        f.array_sort(f.array_distinct(keys)),
        lambda v: f.struct(
            v["index"].alias("index"),
            v["algorithm"].alias("algorithm"),
            v["root"].alias("root"),
            f.size(f.filter(keys, lambda k: k == v)).alias("count"),
        ),
    )


def _rivals(votes: Column, vote: Column) -> Column:
    """The other roots of the same index and algorithm."""
    return f.filter(
        votes,
        lambda w: (
            (w["index"] == vote["index"])
            & (w["algorithm"] == vote["algorithm"])
            & (w["root"] != vote["root"])
        ),
    )


def _with_majority(votes: Column) -> Column:
    return f.transform(
        votes,
        lambda v: f.struct(
            *[v[name].alias(name) for name in ("index", "algorithm", "root", "count")],
            (
                (v["count"] >= MAJORITY_MIN)
                & ~f.exists(_rivals(votes, v), lambda w: w["count"] >= v["count"])
            ).alias("is_majority"),
            (f.size(_rivals(votes, v)) > 0).alias("is_disputed"),
        ),
    )


def _minority() -> Column:
    votes = f.col("votes")
    losers = f.filter(
        votes,
        lambda v: ~v["is_majority"] & f.exists(_rivals(votes, v), lambda w: w["is_majority"]),
    )
    return f.transform(
        f.filter("known", lambda r: f.exists(losers, lambda v: _holds(r, v))),
        lambda r: r["datanode_id"],
    )


def _holds(replica: Column, vote: Column) -> Column:
    return (
        (replica["replica_index"] == vote["index"])
        & (replica["tree_algorithm"] == vote["algorithm"])
        & (replica["root"] == vote["root"])
    )


def _tombstones_differ() -> Column:
    known = f.filter("known", lambda r: r["tombstones_checksum"].isNotNull())
    return f.exists(
        known,
        lambda r: f.exists(
            known,
            lambda o: (_key(o) == _key(r)) & (o["tombstones_checksum"] != r["tombstones_checksum"]),
        ),
    )


def _unreachable_differs() -> Column:
    """A replica that cannot answer now said something else before: noted, never counted."""
    silent = f.filter("unreachable", _has_root)
    return f.exists(
        silent,
        lambda r: f.exists(
            "votes",
            lambda v: (
                (v["index"] == r["replica_index"])
                & (v["algorithm"] == r["tree_algorithm"])
                & (v["root"] != r["root"])
            ),
        ),
    )


def is_disputed() -> Column:
    """Whether nobody can say which of the replicas that answer is right."""
    word = f.col("checksum_class")
    return word.startswith("MISMATCH") | (word == "CONTRADICTORY")


def roots_differ() -> Column:
    """Whether replicas that answer have different roots."""
    votes = f.exists("votes", lambda v: v["is_disputed"])
    word = f.col("checksum_class")
    return word.startswith("MISMATCH") | ((word == "CONTRADICTORY") & votes)


def _checksum_class() -> Column:
    votes = f.col("votes")
    disputed = f.filter(votes, lambda v: v["is_disputed"])
    undecided = f.filter(
        disputed,
        lambda v: ~v["is_majority"] & ~f.exists(_rivals(votes, v), lambda w: w["is_majority"]),
    )
    mixed = f.exists(
        votes,
        lambda v: f.exists(
            votes, lambda w: (w["index"] == v["index"]) & (w["algorithm"] != v["algorithm"])
        ),
    )
    comparable_state = f.coalesce(f.col("state").isin(*COMPARED_CONTAINER_STATES), f.lit(False))
    is_ec = f.col("replication_type") == "EC"
    return (
        f.when(~comparable_state, "NOT_COMPARABLE")
        .when(f.size("replicas") == 0, "EMPTY")
        .when(f.size("countable") == 0, "NOT_COMPARABLE")
        .when(f.forall("countable", lambda r: r["is_empty"]), "EMPTY")
        .when(f.exists("countable", lambda r: r["is_contradictory"]), "CONTRADICTORY")
        .when(f.size(undecided) > 0, "MISMATCH_SPLIT")
        .when(f.size(disputed) > 0, "MISMATCH_MINORITY")
        .when(is_ec & (f.size("compared") == 0), "NOT_COMPARABLE")
        .when(f.size("compared") == 1, "SINGLE")
        .when(f.size("known") == 0, "UNKNOWN")
        .when(mixed, "NOT_COMPARABLE")
        .when(f.size("known") < f.size("compared"), "PARTIAL")
        .otherwise("MATCH")
    )
