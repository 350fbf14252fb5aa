"""The names that the files of `pytest --code FILE` register. Contract tests then test these alone."""

OWN: set[str] = set()
