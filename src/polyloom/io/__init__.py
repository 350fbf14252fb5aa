"""Files: reading with limits, writing atomically, YAML."""
