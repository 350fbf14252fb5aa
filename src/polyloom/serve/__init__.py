"""Serve runs: many callers, tasks and languages at once, one backbone in memory."""

from polyloom.serve.answers import Answer
from polyloom.serve.engine import Engine
from polyloom.serve.limits import Limits

__all__ = ["Answer", "Engine", "Limits"]
