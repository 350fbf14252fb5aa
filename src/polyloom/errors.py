"""Errors for users: each message names the place, the problem, a hint and the known choices."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar, NamedTuple


class PolyloomError(Exception):
    """Base class of all errors that a user can correct.

    Attributes:
        status: Status of HTTP with which a server answers.
    """

    status: ClassVar[int] = 422


class PolyloomWarning(UserWarning):
    """A warning about data or predictions that are probably not what the user intends."""


class ConditionError(PolyloomError):
    """A condition is malformed, unknown, or not supported by the method."""

    status = 404


class BackboneError(PolyloomError):
    """A backbone is unknown, or lacks what a method needs."""


class BusyError(PolyloomError):
    """A second use of a backbone was attempted while the first was still running."""


class RowError(PolyloomError):
    """The rows of a batch and the rows of the weights do not match."""


class CheckpointError(PolyloomError):
    """A checkpoint cannot be read, or does not belong to this backbone."""


class DamagedError(CheckpointError):
    """A file of a run or of a checkpoint is not as it was written."""


class AccessError(PolyloomError):
    """A run names a file that it may not read."""


class StorageError(PolyloomError):
    """A request to object storage fails; the message begins with the address."""


class MissingObjectError(StorageError):
    """An object does not exist."""


class ObjectChangedError(StorageError):
    """An object is not the one that was read before."""


class ExportError(PolyloomError):
    """An adapter cannot be written in a format, or read from it."""


class PredictionError(PolyloomError):
    """One record cannot be predicted; the others of its batch can."""

    status = 500


class TooLongError(PredictionError):
    """An input is longer than a server accepts."""

    status = 413


class OverloadedError(PolyloomError):
    """A server has no room for a request."""

    status = 429


class UnavailableError(PolyloomError):
    """A server cannot answer at the moment."""

    status = 503


class DeadlineError(PolyloomError):
    """A request was not answered in time."""

    status = 504


# Errors of a single prediction that keep their class on their way through a server to its client.
CLIENT_VISIBLE_ERRORS: tuple[type[PolyloomError], ...] = (
    ConditionError,
    PredictionError,
    TooLongError,
    OverloadedError,
    UnavailableError,
    DeadlineError,
)


class DataError(PolyloomError):
    """A corpus is invalid; the message begins with ``file:line``."""

    def __init__(self, path: object, line: int | None, what: str) -> None:
        self.path, self.line, self.what = path, line, what
        super().__init__(f"{path}:{line}: {what}" if line else f"{path}: {what}")

    def __reduce__(self) -> tuple[type, tuple[object, int | None, str]]:
        """Support pickling between processes."""
        return type(self), (self.path, self.line, self.what)


class Location(NamedTuple):
    """A file, stream or data set, and a line or row of it: what a mistake in data is reported with."""

    source: object
    line: int | None = None

    def error(self, what: str) -> DataError:
        """Return an error that begins with this location."""
        return DataError(self.source, self.line, what)


class TrainingError(PolyloomError):
    """A run cannot start or cannot continue."""


class ConfigError(PolyloomError):
    """A recipe has mistakes; all of them are listed.

    Attributes:
        mistakes: One sentence per mistake, each beginning with its path.
    """

    def __init__(self, source: str, mistakes: Iterable[str]) -> None:
        self.mistakes = tuple(mistakes)
        count = len(self.mistakes)
        head = f"{source}: {count} mistake{'s' if count != 1 else ''}"
        super().__init__("\n".join([head, *(f"  {mistake}" for mistake in self.mistakes)]))


COMPARED = 2000  # names at most that a mistake is compared with


def suggest(word: str, known: Iterable[str], *, limit: int = 12) -> str:
    """Suggest the closest known name and list the known names.

    Args:
        word: The unknown name.
        known: The names that are known.
        limit: Maximum number of known names to list.

    Returns:
        A sentence such as ``Did you mean 'tr'? Known: en, sw, tr.``
    """
    names = list(map(str, known))
    # A server with many languages answers mistakes in milliseconds: it compares with names of the same first letter.
    similar = names if len(names) <= COMPARED else [name for name in names if name[:1] == str(word)[:1]][:COMPARED]
    close = get_close_matches(str(word), similar, n=1, cutoff=0.6)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    listed = ", ".join(names[:limit]) + (f", … ({len(names)} in all)" if len(names) > limit else "")
    return f"{hint}Known: {listed.encode(errors='backslashreplace').decode() or 'none'}."
