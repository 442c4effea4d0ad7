-- Did what was delivered follow the arm? Treated loops without delivery are holes, holdout loops with one are contamination.
SELECT
    experiment,
    arm,
    count(*) AS n,
    count(*) FILTER (is_delivered) AS delivered,
    count(*) FILTER (NOT is_delivered) AS not_delivered,
    count(*) FILTER (is_delivered IS NULL) AS not_logged,
    count(*) FILTER (arm IS DISTINCT FROM arm_logged AND arm_logged IS NOT NULL) AS arm_differs_from_log
FROM stg_loops
WHERE scope = 'enrolled'
GROUP BY experiment, arm
ORDER BY experiment NULLS LAST, arm NULLS LAST
