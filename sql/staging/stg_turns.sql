-- One row per model turn known at the as-of, with all its tokens in one number.
SELECT
    run_id,
    session_id,
    decision,
    ts,
    model,
    coalesce(tokens_input, 0) + coalesce(tokens_output, 0) + coalesce(tokens_cache_read, 0)
        + coalesce(tokens_cache_write, 0) AS tokens,
    cost_micros
FROM turns
WHERE ts IS NULL OR ts <= (SELECT as_of FROM reading)
