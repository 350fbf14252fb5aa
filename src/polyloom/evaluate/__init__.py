"""Evaluation: scores of conditions, the matrix of tasks and languages, comparisons."""
