"""The screen: one pass over everything that proves most containers healthy by numbers alone.

    containers ─┐
                ├─ union of narrow rows ─► exchange by container ─► one aggregate of longs
    replicas ───┘
         plain    everything as it should be: its verdict is known, nothing is left to do
         suspect  anything else at all: `judge` looks at it with all its replicas side by side

The screen never decides that something is wrong. A container is plain only when each number says
so; what the numbers cannot prove goes to the judge, which costs time and never correctness. Each
replica row crosses the network once, as four longs, and no string is aggregated.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from health.rules import Rules
from health.words import (
    CONTAINER_STATES,
    REACHABLE_HEALTHS,
    REPLICATION_TYPES,
    SERVICE_OF,
    Health,
    Service,
)
from spark_verify.rows import ROWS_PER_CONTAINER_MAX
from spark_verify.snapshot import Snapshot
from spark_verify.violations import code_violations

BITS: Final = 10
"""Of one counter; six of them and the count of container rows share one long.

More rows of a container than a counter holds are refused; that they were counted right is asked of
`row_count`, which has a long for itself."""

assert ROWS_PER_CONTAINER_MAX < 1 << BITS

COUNTERS: Final = ("replicas", "closed", "open", "known", "resting", "trouble")
BOX_SHIFT: Final = BITS * len(COUNTERS)
ALGORITHMS: Final = ("xxh3_64", "crc32c")
"""Roots of each are compared among themselves; any other algorithm is left to the judge."""

RACKS_COUNTED_MAX: Final = 16
"""Racks whose replicas are counted, four bits each; of more only one bit each tells of any."""

NIBBLES: Final = 0x1111_1111_1111_1111

MASKS: Final = ("indexes", "nodes", "more_nodes", "racks")
LONG_MAX: Final = (1 << 63) - 1

# What a row says of its container, side by side in one long: a replica its four places, each
# below 64, a container what it is.
NODE_SHIFT: Final = 0
OTHER_NODE_SHIFT: Final = 6
RACK_SHIFT: Final = 12
INDEX_SHIFT: Final = 18
STATE_SHIFT: Final = 24
TYPE_SHIFT: Final = 28
WRITABLE_SHIFT: Final = 30
PARITY_SHIFT: Final = 32
WIDTH_SHIFT: Final = 40
WIDTH_MAX: Final = 255
"""Wider than any mask of indexes: such a container is never plain."""

SCREEN_COLUMNS: Final = (
    "container_id",
    "is_plain",
    "box_count",
    "state",
    "replication_type",
    "checksum_class",
    "eligibility",
    "remaining_redundancy",
    "replica_count",
)


def screen(snapshot: Snapshot, rules: Rules) -> DataFrame:
    """Return one row per container id of the snapshot; only plain ones carry a class."""
    rows = _replicas(snapshot, rules).unionByName(_boxes(snapshot))
    # Partitioned first, so that one aggregate sees whole groups: two would each hash every row.
    partitions = snapshot.containers.sparkSession.conf.get("spark.sql.shuffle.partitions")
    assert partitions is not None, "Spark has a default for it"
    grouped = rows.repartition(int(partitions), "container_id").groupBy("container_id")
    return _concluded(grouped.agg(*_sums(rules)), rules)


def screen_clustered(snapshot: Snapshot, rules: Rules) -> DataFrame:
    """Return the same for tables that lie bucketed by container: nothing is shuffled."""
    replicas = _replicas(snapshot, rules).groupBy("container_id").agg(*_sums(rules))
    boxes = _boxes(snapshot).groupBy("container_id")
    packed = boxes.agg(
        f.try_sum("counts").alias("box_counts"),
        f.bit_or("facts").alias("box_facts"),
        f.count(f.lit(1)).alias("box_rows"),
    )
    # Hashed, because neither side need be sorted for it.
    joined = replicas.join(packed.hint("shuffle_hash"), "container_id", "full_outer")
    zero = f.lit(0)
    total = {
        "counts": f.coalesce("counts", zero) + f.coalesce("box_counts", zero),
        "facts": f.coalesce("facts", zero).bitwiseOR(f.coalesce("box_facts", zero)),
        "row_count": f.coalesce("row_count", zero) + f.coalesce("box_rows", zero),
    }
    masks = {name: f.coalesce(name, zero) for name in MASKS}
    return _concluded(joined.withColumns(total | masks), rules)


def _bit(place: Column) -> Column:
    return f.call_function("shiftleft", f.lit(1).cast("long"), place.cast("int"))


def _one(counter: str, when: Column) -> Column:
    return f.when(when, 1 << (BITS * COUNTERS.index(counter))).otherwise(0).cast("long")


def _numbered_nodes(snapshot: Snapshot, rules: Rules) -> DataFrame:
    """What a replica gets from its node, made ready to be added up; only of sound nodes.

    Racks are numbered from 0 among these nodes, so that few racks have low numbers.
    """
    is_sound = f.col("health").isin(*REACHABLE_HEALTHS) & ~_serves(Service.DECOMMISSION)
    sound = snapshot.nodes.filter(is_sound).select(
        "datanode_id",
        (f.row_number().over(Window.orderBy("datanode_id")) - 1).alias("node"),
        (f.dense_rank().over(Window.orderBy("rack")) - 1).alias("rack_number"),
        _serves(Service.MAINTENANCE).alias("is_resting"),
    )
    rack = f.col("rack_number")
    rack_place = rack * 4 if rules.rack_count <= RACKS_COUNTED_MAX else f.pmod(rack, f.lit(64))
    places = {
        NODE_SHIFT: f.pmod("node", f.lit(64)),
        OTHER_NODE_SHIFT: f.pmod(f.xxhash64("node"), f.lit(64)),
        RACK_SHIFT: rack_place,
    }
    # Found by number: a lookup by name would hash and compare text for every replica.
    return sound.select(
        f.xxhash64("datanode_id").alias("node_key"),
        f.col("datanode_id").alias("node_name"),
        (f.lit(1).cast("long") + _one("resting", f.col("is_resting"))).alias("node_counts"),
        _packed(places).alias("places"),
    )


def _serves(service: Service) -> Column:
    """Whether a node's operational state is one of those counted as `service`."""
    return f.col("op_state").isin(*[word for word, own in SERVICE_OF.items() if own == service])


def _packed(values: dict[int, Column]) -> Column:
    """Return small values side by side in one long, each at its shift."""
    total = f.lit(0).cast("long")
    for shift, value in values.items():
        total = total + value.cast("long") * (1 << shift)
    return total


def _replicas(snapshot: Snapshot, rules: Rules) -> DataFrame:
    nodes = f.broadcast(_numbered_nodes(snapshot, rules))
    keyed = snapshot.replicas.withColumn("node_key", f.xxhash64("datanode_id"))
    rows = keyed.join(nodes, "node_key", "left")
    is_known = f.col("root").isNotNull() & f.col("tree_algorithm").isNotNull()
    trouble = (
        ~f.coalesce(f.col("node_name") == f.col("datanode_id"), f.lit(False))
        | (f.col("finding_count") != 0)
        | f.col("is_contradictory")
        | f.col("is_empty")
        | f.col("load_error").isNotNull()
        | (is_known & ~f.col("tree_algorithm").isin(*ALGORITHMS))
    )
    closed, opened = (1 << (BITS * COUNTERS.index(name)) for name in ("closed", "open"))
    counts = (
        f.coalesce("node_counts", f.lit(1).cast("long"))
        + f.when(f.col("state") == "CLOSED", closed)
        .when(f.col("state") == "OPEN", opened)
        .otherwise(0)
        .cast("long")
        + _one("known", is_known)
        + _one("trouble", trouble)
    )
    # One word for root and tombstones: equal words, equal both, as surely as equal roots mean
    # equal bytes. Unequal words prove nothing; they are for the judge. Its sign is the algorithm.
    word = f.xxhash64("root", "tombstones_checksum")
    signed = f.when(
        f.col("tree_algorithm") == ALGORITHMS[0], word.bitwiseAND(f.lit(LONG_MAX))
    ).otherwise(word.bitwiseOR(f.lit(-LONG_MAX - 1)))
    return rows.select(
        "container_id",
        counts.alias("counts"),
        (
            f.coalesce("places", f.lit(0).cast("long"))
            + f.col("replica_index").cast("long") * (1 << INDEX_SHIFT)
        ).alias("facts"),
        f.when(is_known, signed).alias("word"),
    )


def _boxes(snapshot: Snapshot) -> DataFrame:
    """Containers as rows of the same shape, all their facts packed into one long."""
    busy = snapshot.pending_ops.select("container_id").distinct().withColumn("busy", f.lit(True))
    rows = snapshot.containers.join(f.broadcast(busy), "container_id", "left")
    is_ec = f.col("replication_type") == "EC"
    width = f.when(is_ec, f.col("ec_data") + f.col("ec_parity")).otherwise(
        f.col("replication_factor")
    )
    trouble = f.col("busy").isNotNull() | f.col("suppressed")
    # What the control plane does not call healthy is for the judge, also if it looks plain.
    trouble = trouble | f.coalesce(f.col("health_state") != Health.HEALTHY.name, f.lit(False))
    for _, wrong in code_violations(f.col):
        trouble = trouble | f.coalesce(wrong, f.lit(False))
    parity = f.coalesce(f.col("ec_parity"), f.lit(0))
    box = _packed(
        {
            STATE_SHIFT: _place("state", CONTAINER_STATES),
            TYPE_SHIFT: _place("replication_type", REPLICATION_TYPES),
            WRITABLE_SHIFT: f.col("pipeline_alive").cast("int"),
            PARITY_SHIFT: f.least(parity, f.lit(WIDTH_MAX)),
            WIDTH_SHIFT: f.least(width, f.lit(WIDTH_MAX)),
        }
    )
    return rows.select(
        "container_id",
        (f.lit(1 << BOX_SHIFT).cast("long") + _one("trouble", trouble)).alias("counts"),
        f.coalesce(box, f.lit(0).cast("long")).alias("facts"),
        f.lit(None).cast("long").alias("word"),
    )


def _place(column: str, words: tuple[str, ...]) -> Column:
    place = f.lit(len(words))
    for number, word in enumerate(words):
        place = f.when(f.col(column) == word, number).otherwise(place)
    return place


def _sums(rules: Rules) -> list[Column]:
    word = f.col("word")
    by_algorithm = zip(ALGORITHMS, (f.when(word >= 0, word), f.when(word < 0, word)), strict=True)
    ends = [
        end(own).alias(f"{name}_{which}")
        for name, own in by_algorithm
        for which, end in (("min", f.min), ("max", f.max))
    ]
    # A container's own row counts no replica, so its bit is 0 wherever its facts would put it.
    one = f.col("counts").bitwiseAND(f.lit(1))

    def at(shift: int) -> Column:
        # Java shifts a long by the lowest six bits only: exactly one place.
        return f.call_function("shiftleft", one, f.shiftright("facts", shift).cast("int"))

    # Sums that no longer fit are null, and then nothing is plain.
    racks = f.try_sum if rules.rack_count <= RACKS_COUNTED_MAX else f.bit_or
    return [
        f.try_sum("counts").alias("counts"),
        f.count(f.lit(1)).alias("row_count"),
        f.bit_or("facts").alias("facts"),
        *ends,
        f.bit_or(at(NODE_SHIFT)).alias("nodes"),
        f.bit_or(at(OTHER_NODE_SHIFT)).alias("more_nodes"),
        racks(at(RACK_SHIFT)).alias("racks"),
        f.bit_or(at(INDEX_SHIFT)).alias("indexes"),
    ]


def _field(column: str, shift: int, bits: int) -> Column:
    return f.shiftright(f.col(column), shift).bitwiseAND(f.lit((1 << bits) - 1)).cast("int")


def _concluded(sums: DataFrame, rules: Rules) -> DataFrame:
    counters = {name: _field("counts", BITS * place, BITS) for place, name in enumerate(COUNTERS)}
    facts = sums.withColumns(
        {
            **counters,
            "box_count": _field("counts", BOX_SHIFT, 3),
            "state_number": _field("facts", STATE_SHIFT, 4),
            "type_number": _field("facts", TYPE_SHIFT, 2),
            "is_writable": _field("facts", WRITABLE_SHIFT, 1) == 1,
            "parity": _field("facts", PARITY_SHIFT, 8),
            "width": _field("facts", WIDTH_SHIFT, 8),
            "racks_used": _racks_used(rules),
        }
    )
    is_ec = f.col("type_number") == REPLICATION_TYPES.index("EC")
    is_closed = f.col("state_number") == CONTAINER_STATES.index("CLOSED")
    plain = f.coalesce(_is_plain(is_ec, is_closed, rules), f.lit(False))
    return facts.withColumns(
        {
            "is_plain": plain,
            "state": _word("state_number", CONTAINER_STATES),
            "replication_type": _word("type_number", REPLICATION_TYPES),
            "checksum_class": f.when(plain, _class(is_ec, is_closed)),
            "eligibility": f.when(plain, _eligibility(is_closed)),
            "remaining_redundancy": f.when(
                is_closed, f.when(is_ec, f.col("parity")).otherwise(f.col("replicas") - 1)
            ),
            "replica_count": (f.col("row_count") - f.coalesce("box_count", f.lit(0))).cast("int"),
        }
    ).select(*SCREEN_COLUMNS)


def _is_plain(is_ec: Column, is_closed: Column, rules: Rules) -> Column:
    n, width = f.col("replicas"), f.col("width")
    sane = (f.col("box_count") == 1) & (f.col("trouble") == 0)
    sane = sane & (f.col("row_count") == n + 1)  # else a counter has run over into the next
    sane = sane & (f.col("type_number") < len(REPLICATION_TYPES))
    distinct = (f.bit_count("nodes") == n) | (f.bit_count("more_nodes") == n)
    distinct = distinct | (f.col("racks_used") == n)  # what stands on two racks is on two nodes
    every_index = _bit(width + 1) - 2
    right_indexes = f.col("indexes") == f.when(is_ec, every_index).otherwise(1)
    agree = f.lit(True)
    for name in ALGORITHMS:
        agree = agree & f.col(f"{name}_min").eqNullSafe(f.col(f"{name}_max"))
    closed = is_closed & (f.col("closed") == n) & (n == width) & (n > 0)
    closed = closed & right_indexes & (is_ec | agree) & _is_placed(is_ec, rules)
    closed = closed & _is_online_enough(is_ec, rules)
    is_open = f.col("state_number") == CONTAINER_STATES.index("OPEN")
    opened = is_open & f.col("is_writable") & (f.col("open") == n)
    fits = f.col("indexes").bitwiseAND(f.bitwise_not(every_index)) == 0
    in_range = f.when(is_ec, fits).otherwise(f.col("indexes") <= 1)
    gone = (f.col("state_number") == CONTAINER_STATES.index("DELETED")) & (n == 0)
    return sane & ((distinct & closed) | (distinct & opened & in_range) | gone)


def _is_online_enough(is_ec: Column, rules: Rules) -> Column:
    """Whether what is not in maintenance satisfies the rules until the rest is back."""
    online = f.col("replicas") - f.col("resting")
    data = f.col("width") - f.col("parity")
    ec_min = data + f.least(f.col("parity"), f.lit(rules.ec_redundancy))
    ratis_min = f.least(f.col("width"), f.lit(rules.maintenance_min))
    return (f.col("resting") == 0) | (online >= f.when(is_ec, ec_min).otherwise(ratis_min))


def _racks_used(rules: Rules) -> Column:
    racks = f.col("racks")
    if rules.rack_count > RACKS_COUNTED_MAX:
        return f.bit_count(racks)  # or more, when two racks share a bit
    spread = racks
    for shift in (1, 2, 3):
        spread = spread.bitwiseOR(f.shiftrightunsigned(racks, shift))
    # Sixteen or more replicas would carry into the next rack's count.
    fits = f.col("replicas") < (1 << 4)
    return f.when(fits, f.bit_count(spread.bitwiseAND(f.lit(NIBBLES)))).otherwise(0)


def _is_placed(is_ec: Column, rules: Rules) -> Column:
    """Enough racks for exactly `width` replicas, and for EC no rack with more than its share."""
    if rules.rack_count <= 1:
        return f.lit(True)
    width, used = f.col("width"), f.col("racks_used")
    scattered = used == f.col("replicas")
    if rules.rack_count <= RACKS_COUNTED_MAX:
        required = f.least(width, f.lit(rules.rack_count))
        share = f.ceil(width / required)
        scattered = (used >= required) & (_most_on_a_rack() <= share)
    return (width == 1) | f.when(is_ec, scattered).otherwise(used >= 2)


def _most_on_a_rack() -> Column:
    racks = f.col("racks")
    return f.greatest(*[_nibble(racks, place) for place in range(RACKS_COUNTED_MAX)])


def _nibble(number: Column, place: int) -> Column:
    return f.shiftrightunsigned(number, 4 * place).bitwiseAND(f.lit(15))


def _word(column: str, words: tuple[str, ...]) -> Column:
    return f.get(f.array(*[f.lit(word) for word in words]), f.col(column))


def _class(is_ec: Column, is_closed: Column) -> Column:
    n, known = f.col("replicas"), f.col("known")
    mixed = f.lit(True)
    for name in ALGORITHMS:
        mixed = mixed & f.col(f"{name}_min").isNotNull()
    return (
        f.when(~is_closed | is_ec, "NOT_COMPARABLE")
        .when(n == 1, "SINGLE")
        .when(known == 0, "UNKNOWN")
        .when(mixed, "NOT_COMPARABLE")
        .when(known < n, "PARTIAL")
        .otherwise("MATCH")
    )


def _eligibility(is_closed: Column) -> Column:
    is_ratis = f.col("type_number") == REPLICATION_TYPES.index("RATIS")
    return (
        f.when(~is_closed, "INELIGIBLE_CONTAINER_STATE")
        .when(~is_ratis, "INELIGIBLE_REPLICATION_TYPE")
        .when(f.col("width") <= 1, "NOT_ENOUGH_REQUIRED_NODES")
        .otherwise("OK")
    )
