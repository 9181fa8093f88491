-- A screen, as a person would write it for DuckDB: containers that it calls plain need no
-- judge. bench/verification/duckdb_verify.py fills in the blanks. Undecided means suspect, as in the job.
CREATE TEMP TABLE node AS
SELECT datanode_id, op_state IN ('IN_MAINTENANCE', 'ENTERING_MAINTENANCE') AS resting,
  health IN ($reachable) AND op_state NOT IN ('DECOMMISSIONING', 'DECOMMISSIONED') AS sound,
  1::UBIGINT << (dense_rank() OVER (ORDER BY rack) - 1) % 64 AS rack,
  1::UBIGINT << (row_number() OVER (ORDER BY datanode_id) - 1) % 64 AS place,
  1::UBIGINT << (hash(datanode_id) % 64)::INT AS other_place
FROM '$snapshot/nodes/*.parquet';
CREATE TEMP TABLE screened AS
WITH r AS (
  SELECT r.*, n.*, root IS NOT NULL AND tree_algorithm IS NOT NULL AS known,
    hash(root, tombstones_checksum) AS word
  FROM '$snapshot/replicas/*.parquet' r LEFT JOIN node n USING (datanode_id)
), counted AS (
  SELECT container_id, count(*)::INT AS n, count_if(state = 'CLOSED') AS closed,
    count_if(state = 'OPEN') AS opened, count_if(known) AS known, count_if(resting) AS resting,
    bit_or(1::UBIGINT << replica_index) AS indexes,
    bit_count(bit_or(rack)) AS racks, bit_count(bit_or(place)) AS places,
    bit_count(bit_or(other_place)) AS other_places,
    min(word) FILTER (known AND tree_algorithm = 'xxh3_64') AS x_low,
    max(word) FILTER (known AND tree_algorithm = 'xxh3_64') AS x_high,
    min(word) FILTER (known AND tree_algorithm = 'crc32c') AS c_low,
    max(word) FILTER (known AND tree_algorithm = 'crc32c') AS c_high,
    bool_or(NOT coalesce(sound, false) OR finding_count <> 0 OR is_contradictory OR is_empty
      OR load_error IS NOT NULL OR (known AND tree_algorithm NOT IN ('xxh3_64', 'crc32c')))
      AS trouble
  FROM r GROUP BY container_id
), box AS (
  SELECT coalesce(c.container_id, k.container_id) AS container_id, c.container_id IS NULL
      OR suppressed OR c.container_id IN (SELECT container_id FROM '$snapshot/pending_ops/*.parquet')
      OR coalesce(health_state <> 'HEALTHY', false) OR coalesce(trouble, false)
      OR CASE WHEN replication_type = 'EC' THEN coalesce(NOT (ec_data >= 1 AND ec_parity >= 1), true)
        ELSE replication_factor < 1 END AS odd,
    replication_type, c.state, replication_type = 'EC' AS ec, coalesce(ec_parity, 0) AS parity,
    CASE WHEN replication_type = 'EC' THEN ec_data + ec_parity ELSE replication_factor END AS width,
    pipeline_alive, coalesce(n, 0) AS n, coalesce(closed, 0) AS closed, coalesce(opened, 0) AS opened,
    coalesce(known, 0) AS known, coalesce(resting, 0) AS resting, coalesce(racks, 0) AS racks,
    coalesce(indexes, 0) AS indexes, greatest(racks, places, other_places) = n AS apart,
    x_low IS NOT DISTINCT FROM x_high AND c_low IS NOT DISTINCT FROM c_high AS agree,
    x_low IS NOT NULL AND c_low IS NOT NULL AS mixed
  FROM '$snapshot/containers/*.parquet' c FULL JOIN counted k ON c.container_id = k.container_id
)
SELECT container_id, replication_type, state, n, CASE
    WHEN state <> 'CLOSED' OR ec THEN 'NOT_COMPARABLE' WHEN n = 1 THEN 'SINGLE'
    WHEN known = 0 THEN 'UNKNOWN' WHEN mixed THEN 'NOT_COMPARABLE' WHEN known < n THEN 'PARTIAL'
    ELSE 'MATCH' END AS checksum_class, CASE
    WHEN state <> 'CLOSED' THEN 'INELIGIBLE_CONTAINER_STATE'
    WHEN ec THEN 'INELIGIBLE_REPLICATION_TYPE' WHEN width <= 1 THEN 'NOT_ENOUGH_REQUIRED_NODES'
    ELSE 'OK' END AS eligibility,
  CASE WHEN state = 'CLOSED' THEN CASE WHEN ec THEN parity ELSE n - 1 END END AS redundancy,
  coalesce(NOT odd AND CASE state
    WHEN 'CLOSED' THEN apart AND closed = n AND n = width
      AND indexes = CASE WHEN ec THEN (1::UBIGINT << (width + 1)) - 2 ELSE 1 END AND (ec OR agree)
      AND ($rack_count <= 1 OR width = 1 OR CASE WHEN ec THEN racks = n ELSE racks >= 2 END)
      AND (resting = 0 OR n - resting >= CASE WHEN ec THEN width - parity + least(parity,
        $ec_redundancy) ELSE least(width, $maintenance_min) END)
    WHEN 'OPEN' THEN (apart OR n = 0) AND pipeline_alive AND opened = n
      AND CASE WHEN ec THEN indexes & ~((1::UBIGINT << (width + 1)) - 2) = 0 ELSE indexes <= 1 END
    WHEN 'DELETED' THEN n = 0 ELSE false END, false) AS plain
FROM box;
COPY (
  SELECT container_id, state, replication_type, 0::INT AS health_state, 0::BIGINT AS flags,
    '$no_queue' AS queue, false AS is_qc_stuck, checksum_class, eligibility,
    redundancy::INT AS remaining_redundancy, n AS replica_count, true AS is_known,
    '$snapshot_id' AS snapshot_id
  FROM screened WHERE plain
) TO '$out/health/part-plain.parquet' (COMPRESSION zstd);
COPY (
  SELECT container_id, 'scan' AS action, $scan_priority::INT AS priority, 'root not known' AS reason,
    []::VARCHAR[] AS sources, []::VARCHAR[] AS doubts, [datanode_id] AS targets,
    []::INT[] AS indexes, 0::INT AS copies, false AS is_forced, used_bytes AS bytes_estimated,
    '$snapshot_id' AS snapshot_id, $as_of_ms::BIGINT AS as_of_ms,
    $expires_at_ms::BIGINT AS expires_at_ms
  FROM '$snapshot/replicas/*.parquet' r JOIN '$snapshot/nodes/*.parquet' n USING (datanode_id)
  WHERE n.health IN ($reachable) AND r.root IS NULL
    AND (r.state IN ($tree_states) OR r.load_error IS NOT NULL)
) TO '$out/plan/part-scans.parquet' (COMPRESSION zstd);
