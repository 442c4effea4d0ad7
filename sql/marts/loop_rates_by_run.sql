-- How often did each run loop? Attempts, failures and distinct strategy loops of every run.
WITH attempts AS (
    SELECT
        run_id,
        min(session_id) AS session_id,
        min(project) AS project,
        count(*) AS count_steps,
        count(*) FILTER (is_attempt) AS count_attempts,
        count(*) FILTER (is_failed_attempt) AS count_failures
    FROM stg_steps
    GROUP BY run_id
),
-- A class detected both before and under enrolment is one loop of the run.
found AS (
    SELECT run_id, count(DISTINCT signature) AS count_loops
    FROM stg_loops
    GROUP BY run_id
)
SELECT
    attempts.run_id,
    attempts.session_id,
    attempts.project,
    attempts.count_steps,
    attempts.count_attempts,
    attempts.count_failures,
    coalesce(found.count_loops, 0) AS count_loops,
    attempts.count_attempts >= 3 AS is_rated,
    coalesce(found.count_loops, 0) * 1000.0 / nullif(attempts.count_attempts, 0) AS loops_per_1000_attempts
FROM attempts
LEFT JOIN found USING (run_id)
ORDER BY attempts.run_id
