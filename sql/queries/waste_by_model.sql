-- What do loops cost each model? Tokens spent from detection to outcome, beside all tokens of its turns.
-- Where a turn's record names no model, the steps that it asked for do.
WITH asked AS (
    SELECT run_id, decision, min(model) AS model
    FROM steps
    GROUP BY run_id, decision
),
spent AS (
    SELECT coalesce(stg_turns.model, asked.model) AS model, count(*) AS count_turns, sum(stg_turns.tokens)::BIGINT AS tokens
    FROM stg_turns
    LEFT JOIN asked USING (run_id, decision)
    GROUP BY 1
),
lost AS (
    SELECT model, count(*) AS count_loops, count(tokens_wasted) AS count_known, sum(tokens_wasted)::BIGINT AS tokens_wasted
    FROM stg_loops
    GROUP BY model
)
SELECT
    CASE WHEN lost.count_loops IS NULL THEN spent.model ELSE lost.model END AS model,
    coalesce(lost.count_loops, 0) AS count_loops,
    lost.count_known AS n_loops_with_tokens,
    lost.tokens_wasted,
    spent.count_turns,
    spent.tokens
FROM spent
FULL JOIN lost ON spent.model IS NOT DISTINCT FROM lost.model
ORDER BY lost.tokens_wasted DESC NULLS LAST, 1 NULLS LAST
