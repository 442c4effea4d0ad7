-- One row per delivery decision known at the as-of, whether or not a loop stands behind it.
SELECT
    session_id,
    run_id,
    delivery,
    ts,
    experiment,
    signature,
    arm,
    is_delivered,
    tier,
    reason
FROM deliveries
WHERE ts IS NULL OR ts <= (SELECT as_of FROM reading)
