-- Which tools does no table, command, name or log classify? Steps of kind `other`, by tool.
SELECT
    tool,
    harness,
    count(*) AS count_steps,
    count(*) FILTER (outcome = 'failure') AS count_failures,
    count(DISTINCT run_id) AS count_runs
FROM stg_steps
WHERE kind = 'other'
GROUP BY tool, harness
ORDER BY count_steps DESC, tool, harness
