-- How did the loops of each arm end? Counts of mature loops by outcome, the break rate with its n, and what is pending.
SELECT
    scope,
    experiment,
    arm,
    count(*) FILTER (is_mature) AS n,
    count(*) FILTER (outcome = 'broke') AS broke,
    count(*) FILTER (outcome = 'recurred') AS recurred,
    count(*) FILTER (outcome = 'unresolved') AS unresolved,
    count(*) FILTER (outcome = 'pending') AS pending,
    count(DISTINCT session_id) FILTER (is_mature) AS sessions,
    count(*) FILTER (outcome = 'broke') / nullif(count(*) FILTER (is_mature), 0) AS break_rate
FROM stg_loops
GROUP BY scope, experiment, arm
ORDER BY scope, experiment NULLS LAST, arm NULLS LAST
