"""Answers, scores, and the matrix of tasks and languages."""
