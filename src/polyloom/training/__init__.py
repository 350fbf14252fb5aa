"""Training: a generator of steps, and the caller that logs, evaluates, saves and stops."""
