-- The classification of a generated cluster, as a person would write it for DuckDB.
-- bench_spark.py fills in the bits of the flags; its answer must equal the Spark job's.
WITH r AS (
  SELECT r.*, n.rack, n.op_state = 'IN_SERVICE' AS online
  FROM '$snapshot/replicas/*.parquet' r JOIN '$snapshot/nodes/*.parquet' n USING (datanode_id)
), vote AS (
  SELECT container_id, replica_index, tree_algorithm, root, count(*) AS votes,
    count(DISTINCT tombstones_checksum) > 1 AS orphans
  FROM r WHERE root IS NOT NULL GROUP BY ALL
), dispute AS (
  SELECT container_id, replica_index, tree_algorithm, count(*) > 1 AS disputed,
    max(votes) >= 2 AND count(*) FILTER (votes >= 2) = 1 AS decided, bool_or(orphans) AS orphans
  FROM vote GROUP BY ALL
), judged AS (
  SELECT container_id, bool_or(disputed) AS disputed,
    bool_or(disputed AND NOT decided) AS split,
    bool_or(orphans) AS orphans, count(DISTINCT tree_algorithm) > 1 AS mixed
  FROM dispute GROUP BY container_id
), counted AS (
  SELECT container_id, count(*) AS n, count(*) FILTER (state = 'UNHEALTHY') AS bad,
    count(*) FILTER (state = 'CLOSED' AND online) AS good,
    count(*) FILTER (state = 'CLOSED' AND NOT online) AS resting,
    count(*) FILTER (root IS NOT NULL) AS known, sum(finding_count) AS findings,
    count(DISTINCT rack) AS racks
  FROM r GROUP BY container_id
), box AS (
  SELECT c.container_id, c.replication_type = 'EC' AS ec, c.state = 'CLOSED' AS closed,
    c.replication_factor AS rf, c.ec_data AS d, coalesce(n, 0) AS n, coalesce(bad, 0) AS bad,
    coalesce(good, 0) AS good, coalesce(resting, 0) AS resting, coalesce(known, 0) AS known,
    coalesce(findings, 0) AS findings, coalesce(racks, 0) AS racks,
    coalesce(disputed, false) AS disputed, coalesce(split, false) AS split,
    coalesce(orphans, false) AS orphans, coalesce(mixed, false) AS mixed
  FROM '$snapshot/containers/*.parquet' c
  LEFT JOIN counted USING (container_id) LEFT JOIN judged USING (container_id)
), state AS (
  SELECT *, CASE WHEN ec THEN good + resting < d ELSE good + resting = 0 END AS lost,
    CASE WHEN ec THEN n < d ELSE n = 0 END AS missing,
    CASE WHEN ec THEN good < rf AND NOT (good + resting = rf AND good > d)
      ELSE rf - good > 0 AND greatest(2 - good, rf - good - resting) > 0 END AS short
  FROM box
)
SELECT container_id, CASE WHEN NOT closed THEN 0 ELSE
    CASE WHEN missing THEN $MISSING ELSE 0 END
  + CASE WHEN short AND NOT lost THEN $UNDER_REPLICATED ELSE 0 END
  + CASE WHEN good > rf THEN $OVER_REPLICATED ELSE 0 END
  + CASE WHEN NOT short AND NOT lost AND racks < CASE WHEN ec THEN rf ELSE 2 END
      THEN $MIS_REPLICATED ELSE 0 END
  + CASE WHEN lost AND NOT missing THEN $UNHEALTHY ELSE 0 END
  + CASE WHEN bad > 0 THEN $UNHEALTHY_REPLICA ELSE 0 END
  + CASE WHEN disputed AND NOT ec THEN $ROOTS_DIFFER ELSE 0 END
  + CASE WHEN orphans AND NOT ec THEN $TOMBSTONES_DIFFER ELSE 0 END
  + CASE WHEN findings > 0 THEN $SCAN_FINDINGS ELSE 0 END
  + CASE WHEN lost THEN $DATA_AT_RISK ELSE 0 END END::BIGINT AS flags,
  CASE WHEN NOT closed THEN 'NOT_COMPARABLE' WHEN n = 0 THEN 'EMPTY'
    WHEN ec THEN 'NOT_COMPARABLE' WHEN split THEN 'MISMATCH_SPLIT'
    WHEN disputed THEN 'MISMATCH_MINORITY' WHEN n = 1 THEN 'SINGLE'
    WHEN known = 0 THEN 'UNKNOWN' WHEN mixed THEN 'NOT_COMPARABLE'
    WHEN known < n THEN 'PARTIAL' ELSE 'MATCH' END AS checksum_class
FROM state
