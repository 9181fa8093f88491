"""What speaks against copying a replica although it is not called bad.

A replica with findings has chunks that are known to be damaged. Of replicas whose roots differ
nobody knows which is right; the one that agrees with fewer is the likelier to be wrong. Such a
replica is a source only where nothing better is left, and the plan says what speaks against it. The
control plane has the same rule and applies it again before a command leaves.
"""

from pyspark.sql import Column
from pyspark.sql import functions as f

from spark_verify.compare import MAJORITY_MIN
from spark_verify.replicas import is_unhealthy


def doubts() -> Column:
    """Return what speaks against replicas of a judged case: structs of `datanode_id` and `why`.

    Only replicas that can answer and of which no damage is known vote, and only with those of the
    same index and algorithm.
    """
    voters = f.filter("countable", lambda r: _damage(r).isNull() & _has_root(r))
    votes = f.transform(voters, _vote)
    told = f.transform(
        "present",
        lambda r: f.struct(
            r["datanode_id"].alias("datanode_id"),
            f.coalesce(_damage(r), f.when(_has_root(r), _lost(_vote(r), votes))).alias("why"),
        ),
    )
    return f.filter(told, lambda d: d["why"].isNotNull())


def is_doubtful(replica: Column) -> Column:
    """Whether something speaks against a replica; the case must have the column `doubts`."""
    return f.exists("doubts", lambda d: d["datanode_id"] == replica["datanode_id"])


def best_of(*kinds: Column) -> Column:
    """Return the replicas without doubts of the first kind that has any, else the first kind."""
    found = f.when(f.lit(False), kinds[0])
    for kind in kinds:
        sound = sound_of(kind)
        found = found.when(f.size(sound) > 0, sound)
    return found.otherwise(kinds[0])


def sound_of(replicas: Column) -> Column:
    """Return the replicas that nothing speaks against."""
    return f.filter(replicas, lambda r: ~is_doubtful(r))


def told_doubts(datanode_ids: Column) -> Column:
    """Return what speaks against these datanodes' replicas, as text."""
    mine = f.filter("doubts", lambda d: f.array_contains(datanode_ids, d["datanode_id"]))
    return f.transform(mine, lambda d: f.concat(d["datanode_id"], f.lit(": "), d["why"]))


def _damage(replica: Column) -> Column:
    return f.when(is_unhealthy(replica), "UNHEALTHY").when(
        replica["finding_count"] > 0, "scan findings"
    )


def _has_root(replica: Column) -> Column:
    return replica["root"].isNotNull() & replica["tree_algorithm"].isNotNull()


def _vote(replica: Column) -> Column:
    return f.struct(
        replica["replica_index"].alias("index"),
        replica["tree_algorithm"].alias("algorithm"),
        replica["root"].alias("root"),
    )


def _lost(vote: Column, votes: Column) -> Column:
    """Say how a vote went for the replica that gave it; null: nobody disagrees, or few do."""

    def count(one: Column) -> Column:
        return f.size(f.filter(votes, lambda v: v == one))

    rivals = f.filter(
        votes,
        lambda v: (
            (v["index"] == vote["index"])
            & (v["algorithm"] == vote["algorithm"])
            & (v["root"] != vote["root"])
        ),
    )
    counts = f.transform(f.array_distinct(rivals), count)
    best, mine = f.array_max(counts), count(vote)
    has_won = (mine >= MAJORITY_MIN) & (mine > best)
    has_majority = (
        (best >= MAJORITY_MIN)
        & (best > mine)
        & (f.size(f.filter(counts, lambda c: c == best)) == 1)
    )
    disputed = f.when(has_majority, "outvoted").otherwise("roots differ")
    return f.when((f.size(rivals) > 0) & ~has_won, disputed)
