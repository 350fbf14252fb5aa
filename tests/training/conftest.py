"""The folder of tiny corpora that the tests of reliability use."""

from tests.reliability.conftest import world

__all__ = ["world"]
