"""Train a model: a loop that yields steps, and a trainer that logs, validates, saves and resumes."""
