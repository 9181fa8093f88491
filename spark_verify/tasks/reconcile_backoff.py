"""How rarely a container is planned again that no reconcile could mend.

When all replicas of a container are healthy by their own reading and yet differ, a reconcile
cannot help: it would be ordered again at every run. So a container whose roots are the same as when
it was last planned is planned ever more rarely: at its 1st, 2nd, 3rd, 5th, 9th ... run.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_verify.result_tables import DIVERGENT

BEFORE: Final = pa.schema(
    [DIVERGENT.field(name) for name in ("container_id", "replicas", "attempts")]
)
"""What of `divergent/` counts in the next run."""


ATTEMPTS_MAX: Final = 1 << 20


def check_before(rows: pa.Table) -> None:
    """Raise ValueError for rows of the previous run's `divergent/` that are damaged, and do not
    have the checksums by which that is seen: an older version wrote them."""
    rows.validate(full=True)
    attempts = pc.min_max(rows["attempts"]).as_py()
    if rows["attempts"].null_count or rows["container_id"].null_count:
        raise ValueError("container_id or attempts is null")
    if rows.num_rows and not 0 <= attempts["min"] <= attempts["max"] <= ATTEMPTS_MAX:
        raise ValueError(f"attempts from {attempts['min']} to {attempts['max']}")


def with_attempts(divergent: pa.Table, before: pa.Table) -> pa.Table:
    """Fill in `attempts`, runs that found the same roots before, and `is_backed_off`.

    `before` are rows of the previous run's `divergent/`, as `BEFORE` has them.
    """
    is_again = pc.is_in(before["container_id"], value_set=divergent["container_id"])
    was = {row["container_id"]: row for row in before.filter(is_again).to_pylist()}
    attempts = [
        row["attempts"] + 1 if row is not None and row["replicas"] == replicas else 0
        for row, replicas in zip(
            map(was.get, divergent["container_id"].to_pylist()),
            divergent["replicas"].to_pylist() if was else [None] * divergent.num_rows,
            strict=True,
        )
    ]
    filled = {"attempts": attempts, "is_backed_off": [n.bit_count() > 1 for n in attempts]}
    for name, values in filled.items():
        place = DIVERGENT.get_field_index(name)
        kind = DIVERGENT.field(place)
        divergent = divergent.set_column(place, kind, pa.array(values, kind.type))
    return divergent
