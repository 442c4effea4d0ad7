-- How often does work with each tool loop? A run counts for a tool from its third attempt with it.
WITH attempts AS (
    SELECT tool, run_id, count(*) AS count_attempts
    FROM stg_steps
    WHERE is_attempt
    GROUP BY tool, run_id
),
found AS (
    SELECT tool, run_id, count(DISTINCT signature) AS count_loops
    FROM stg_loops
    GROUP BY tool, run_id
),
per_run AS (
    SELECT
        coalesce(attempts.count_attempts, 0) AS count_attempts,
        coalesce(found.count_loops, 0) AS count_loops,
        CASE WHEN attempts.run_id IS NULL THEN found.tool ELSE attempts.tool END AS tool
    FROM attempts
    FULL JOIN found ON attempts.run_id = found.run_id AND attempts.tool IS NOT DISTINCT FROM found.tool
)
SELECT
    tool,
    count(*) FILTER (count_attempts >= 3) AS n_runs,
    count(*) FILTER (count_attempts >= 3 AND count_loops > 0) AS n_runs_with_loop,
    count(*) FILTER (count_attempts >= 3 AND count_loops > 0) / nullif(count(*) FILTER (count_attempts >= 3), 0) AS rate_runs,
    sum(count_attempts)::BIGINT AS count_attempts,
    sum(count_loops)::BIGINT AS count_loops,
    sum(count_loops) * 1000.0 / nullif(sum(count_attempts), 0) AS loops_per_1000_attempts
FROM per_run
GROUP BY tool
ORDER BY tool NULLS LAST
