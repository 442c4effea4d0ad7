-- How often do runs of each project loop? A run counts from its third attempt.
WITH attempts AS (
    SELECT project, run_id, count(*) AS count_attempts
    FROM stg_steps
    WHERE is_attempt
    GROUP BY project, run_id
),
found AS (
    SELECT project, run_id, count(DISTINCT signature) AS count_loops
    FROM stg_loops
    GROUP BY project, run_id
),
per_run AS (
    SELECT
        coalesce(attempts.count_attempts, 0) AS count_attempts,
        coalesce(found.count_loops, 0) AS count_loops,
        CASE WHEN attempts.run_id IS NULL THEN found.project ELSE attempts.project END AS project
    FROM attempts
    FULL JOIN found ON attempts.run_id = found.run_id AND attempts.project IS NOT DISTINCT FROM found.project
)
SELECT
    project,
    count(*) FILTER (count_attempts >= 3) AS n_runs,
    count(*) FILTER (count_attempts >= 3 AND count_loops > 0) AS n_runs_with_loop,
    count(*) FILTER (count_attempts >= 3 AND count_loops > 0) / nullif(count(*) FILTER (count_attempts >= 3), 0) AS rate_runs,
    sum(count_attempts)::BIGINT AS count_attempts,
    sum(count_loops)::BIGINT AS count_loops,
    sum(count_loops) * 1000.0 / nullif(sum(count_attempts), 0) AS loops_per_1000_attempts
FROM per_run
GROUP BY project
ORDER BY project NULLS LAST
