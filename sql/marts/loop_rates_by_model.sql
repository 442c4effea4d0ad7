-- How often does each model loop? A run counts for a model from its third attempt asked for by it.
WITH attempts AS (
    SELECT model, run_id, count(*) AS count_attempts
    FROM stg_steps
    WHERE is_attempt
    GROUP BY model, run_id
),
found AS (
    SELECT model, run_id, count(DISTINCT signature) AS count_loops
    FROM stg_loops
    GROUP BY model, run_id
),
per_run AS (
    SELECT
        coalesce(attempts.count_attempts, 0) AS count_attempts,
        coalesce(found.count_loops, 0) AS count_loops,
        CASE WHEN attempts.run_id IS NULL THEN found.model ELSE attempts.model END AS model
    FROM attempts
    FULL JOIN found ON attempts.run_id = found.run_id AND attempts.model IS NOT DISTINCT FROM found.model
)
SELECT
    model,
    count(*) FILTER (count_attempts >= 3) AS n_runs,
    count(*) FILTER (count_attempts >= 3 AND count_loops > 0) AS n_runs_with_loop,
    count(*) FILTER (count_attempts >= 3 AND count_loops > 0) / nullif(count(*) FILTER (count_attempts >= 3), 0) AS rate_runs,
    sum(count_attempts)::BIGINT AS count_attempts,
    sum(count_loops)::BIGINT AS count_loops,
    sum(count_loops) * 1000.0 / nullif(sum(count_attempts), 0) AS loops_per_1000_attempts
FROM per_run
GROUP BY model
ORDER BY model NULLS LAST
