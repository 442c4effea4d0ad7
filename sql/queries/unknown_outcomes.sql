-- Where do the logs not say how a step ended? Attempts of unknown outcome by harness, tool and reason, with the share.
WITH attempts AS (
    SELECT harness, tool, count(*) AS count_attempts
    FROM stg_steps
    WHERE is_attempt
    GROUP BY harness, tool
),
unknowns AS (
    SELECT harness, tool, outcome_reason, count(*) AS count_unknown
    FROM stg_steps
    WHERE is_attempt AND outcome = 'unknown'
    GROUP BY harness, tool, outcome_reason
)
SELECT
    unknowns.harness,
    unknowns.tool,
    unknowns.outcome_reason,
    unknowns.count_unknown,
    attempts.count_attempts,
    unknowns.count_unknown / attempts.count_attempts AS share_unknown
FROM unknowns
JOIN attempts USING (harness, tool)
ORDER BY unknowns.count_unknown DESC, unknowns.harness, unknowns.tool, unknowns.outcome_reason NULLS LAST
