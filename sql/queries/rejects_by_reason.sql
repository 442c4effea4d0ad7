-- What could not be read, and why? Rejected lines and files by format and reason.
SELECT
    coalesce(nullif(sources.format, ''), 'unknown') AS format,
    rejects.reason,
    count(*) AS count_rejects,
    count(DISTINCT rejects.source_file) AS count_files,
    min(rejects.source_file) AS first_file
FROM rejects
LEFT JOIN sources USING (source_file)
GROUP BY ALL
ORDER BY count_rejects DESC, format, rejects.reason
