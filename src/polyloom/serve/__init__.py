"""Serve runs: many callers, tasks and languages at once, one backbone in memory."""

from polyloom.serve.engine import Engine, Limits
from polyloom.serve.models import Answer

__all__ = ["Answer", "Engine", "Limits"]
