"""Show text that strangers may have written.

Control characters can move the cursor of a terminal, reverse the order of letters, and forge lines of a file.
"""

import re

_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LONGEST = 1000  # letters of a line


def is_printable(text: str) -> bool:
    """Return whether a text has no control characters, line ends, marks of writing direction or halves of pairs."""
    return _CONTROL.search(text) is None


def printable(text: str) -> str:
    """Escape what is not printable, such as line ends."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def for_terminal(text: object) -> str:
    """Return a message of several lines for a terminal: each of limited length, and printable."""
    lines = str(text).split("\n")
    return "\n".join(printable(line[:_LONGEST]) + "…" * (len(line) > _LONGEST) for line in lines)
