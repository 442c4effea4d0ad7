-- Which failures trap the most runs? The twenty classes with the most strategy loops, and how many broke.
SELECT
    tool,
    error_code,
    message,
    count(*) AS count_loops,
    count(DISTINCT run_id) AS count_runs,
    count(*) FILTER (is_mature) AS n,
    count(*) FILTER (is_broke) AS broke,
    sum(tokens_wasted)::BIGINT AS tokens_wasted
FROM stg_loops
GROUP BY signature, tool, error_code, message
ORDER BY count_loops DESC, tool, error_code NULLS LAST, message NULLS LAST, signature
LIMIT 20
