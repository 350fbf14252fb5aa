"""Adapters as files."""
