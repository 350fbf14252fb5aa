"""Files: atomic writes, locks, seals, untrusted files, YAML, object storage and the cache."""
