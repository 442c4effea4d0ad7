-- Does every replay loop have the arm that DuckDB's own SHA-256 gives? count_different must be 0.
WITH recomputed AS (
    SELECT
        arm,
        arm_bp,
        share_bp,
        ('0x' || substr(sha256(run_id || '|' || signature), 1, 13))::BIGINT % 10000 AS arm_bp_sql
    FROM stg_loops
    WHERE scope = 'replay'
)
SELECT
    count(*) AS count_checked,
    count(*) FILTER (
        arm_bp IS DISTINCT FROM arm_bp_sql
        OR arm IS DISTINCT FROM CASE WHEN arm_bp_sql < share_bp THEN 'treated' ELSE 'holdout' END
    ) AS count_different
FROM recomputed
