-- Is every line of every file accounted for? A row a file, what is not explained first: read less used, nothing, folded, rejected and waiting.
SELECT
    source_file,
    format,
    count_read,
    count_used,
    count_nothing,
    count_folded,
    count_rejected,
    count_waiting,
    count_read - count_used - count_nothing - count_folded - count_rejected - count_waiting AS count_unexplained,
    nothing_types
FROM sources
ORDER BY count_unexplained = 0, source_file
