"""Adapters as files: our own, and those of other libraries."""
