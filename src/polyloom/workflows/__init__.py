"""Workflows over runs: train, load, evaluate, add a language, export, plan."""
