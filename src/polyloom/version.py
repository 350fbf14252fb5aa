"""The version of the code that runs: read once, as what lies on disk can change or become unreadable while it runs."""

from importlib.metadata import version

__version__ = version("polyloom")


def versions() -> dict[str, str]:
    """Return the versions of the packages that results depend on."""
    return {name: version(name) for name in ("polyloom", "torch", "transformers")}
