-- Is every line of every file accounted for? Files where read differs from used, nothing, folded, rejected and waiting; no row is right.
SELECT
    source_file,
    format,
    count_read,
    count_used,
    count_nothing,
    count_folded,
    count_rejected,
    count_waiting,
    count_read - count_used - count_nothing - count_folded - count_rejected - count_waiting AS count_unexplained
FROM sources
WHERE count_read <> count_used + count_nothing + count_folded + count_rejected + count_waiting
ORDER BY source_file
