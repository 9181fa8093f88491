"""The numbers of the replication rules, Ozone's defaults, as columns of every case.

As columns a test can judge containers under different rules in one DataFrame, and a run states
its rules in its result.
"""

from dataclasses import asdict, dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


@dataclass(frozen=True, slots=True)
class Rules:
    """What an operator may choose; defaults are Ozone's."""

    maintenance_min: int = 2
    """Replicas of a Ratis container that stay online during maintenance."""

    ec_redundancy: int = 1
    """EC indexes beyond `data` that stay online during maintenance."""

    best_origin_copies: int = 3
    """Stuck quasi-closed: copies of each origin that holds the highest BCSID."""

    other_origin_copies: int = 2
    """Stuck quasi-closed: copies of every other origin."""

    rack_count: int = 1
    """Racks of the cluster that have a node; the job counts them."""


def with_rules(cases: DataFrame, rules: Rules) -> DataFrame:
    """Add the rules' columns to cases; a column that is there already stays as it is."""
    missing = {n: f.lit(v) for n, v in asdict(rules).items() if n not in cases.columns}
    return cases.withColumns(missing)
