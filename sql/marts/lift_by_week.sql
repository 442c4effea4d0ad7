-- How did the arms differ, by the week (Monday, UTC) of detection? Rates with n, without interval or verdict: those are in `loopstats lift`.
WITH weekly AS (
    SELECT
        week,
        scope,
        experiment,
        count(*) FILTER (arm = 'treated') AS n_treated,
        count(*) FILTER (arm = 'treated' AND is_broke) AS broke_treated,
        count(*) FILTER (arm = 'holdout') AS n_holdout,
        count(*) FILTER (arm = 'holdout' AND is_broke) AS broke_holdout
    FROM stg_loops
    WHERE is_mature
    GROUP BY week, scope, experiment
)
SELECT
    week,
    scope,
    experiment,
    n_treated,
    broke_treated,
    broke_treated / nullif(n_treated, 0) AS rate_treated,
    n_holdout,
    broke_holdout,
    broke_holdout / nullif(n_holdout, 0) AS rate_holdout,
    broke_treated / nullif(n_treated, 0) - broke_holdout / nullif(n_holdout, 0) AS lift
FROM weekly
ORDER BY week NULLS LAST, scope, experiment NULLS LAST
