-- One row per tool call known at the as-of, with the flags that the marts count.
SELECT
    run_id,
    session_id,
    step,
    ts,
    tool,
    action,
    kind,
    kind_source,
    target,
    outcome,
    outcome_reason,
    signature,
    actor,
    model,
    harness,
    project,
    "group" AS variant,
    source_file,
    source_line,
    kind IN ('communicate', 'edit', 'execute', 'operate', 'other', 'verify') AND actor = 'agent' AND outcome <> 'vetoed' AS is_attempt,
    kind IN ('communicate', 'edit', 'execute', 'operate', 'other', 'verify') AND actor = 'agent' AND outcome = 'failure'
        AS is_failed_attempt
FROM steps
WHERE ts IS NULL OR ts <= (SELECT as_of FROM reading)
