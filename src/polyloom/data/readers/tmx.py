"""Translation memories (TMX 1.1 to 1.4), read unit by unit in bounded memory.

Codes of languages are compared without regard to case, and ``en`` is also ``en-US``. In a segment, the content of
``bpt``, ``ept``, ``it``, ``ph`` and ``ut`` is another format's markup and is left out; that of ``hi`` is text.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.parsers import expat

from polyloom.errors import DataError, suggest
from polyloom.io.files import LIMITS, read_lines

_PARENTS = {"tu": "body", "tuv": "tu", "seg": "tuv"}
_MARKUP = frozenset({"bpt", "ept", "it", "ph", "ut"})
_MAX_DEPTH = 100
_MAX_CODE = 40  # characters of a language's code
_MAX_TOKEN = 4 * LIMITS.line_bytes  # expat keeps a tag or a comment until it ends, on however many lines
_CHUNK = 64 * 1024  # characters; expat reads a tag that has not ended anew with each
_MAX_LANGUAGES = 100  # to be listed in an error
_OVERHEAD = 64  # characters that an empty segment counts for


def read_tmx(path: Path, direction: tuple[str, str] | None) -> Iterator[tuple[str, str]]:
    """Read the units that have both languages.

    Args:
        path: The file.
        direction: Source and target language; without, the two languages of the first unit, in its order.

    Yields:
        The two texts.
    """
    parser = _Parser(path)
    languages: dict[str, None] = {}
    found = False
    for number, unit in parser.units():
        if len(languages) < _MAX_LANGUAGES:
            languages.update(dict.fromkeys(unit))
        if direction is None:
            if len(unit) != 2:
                what = f"a unit with {len(unit)} languages. Say which two are meant. Known: {', '.join(unit)}."
                raise DataError(path, number, what)
            first, second = unit
            direction = first, second
        source, target = (_chosen(language, unit) for language in direction)
        if source is not None and target is not None and source != target:
            found = True
            yield unit[source], unit[target]
    if not languages:
        raise DataError(path, parser.line, "no translations (<tu>) in this file.")
    if not found:
        missing = next((one for one in direction or () if _chosen(one, languages) is None), "")
        what = f"no unit has both {' and '.join(direction or ())}. {suggest(missing, languages)}"
        raise DataError(path, parser.line, what)


def _chosen(language: str, codes: Mapping[str, object]) -> str | None:
    """The code that is the language, else the first of one of its varieties."""
    wanted = _plain(language)
    same = (code for code in codes if _plain(code) == wanted)
    return next(same, None) or next((code for code in codes if _plain(code).startswith(f"{wanted}-")), None)


def _plain(code: str) -> str:
    return code.casefold().replace("_", "-")


class _Parser:
    """Collects units from the events of expat."""

    def __init__(self, path: Path) -> None:
        self.path, self._last = path, 1
        self._open: list[str] = []
        self._done: list[tuple[int, dict[str, str]]] = []
        self._unit: dict[str, str] = {}
        self._language = ""
        self._text: list[str] | None = None
        self._hidden = self._size = self._waiting = 0
        self._expat = expat.ParserCreate()
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.CharacterDataHandler = self._data
        self._expat.DefaultHandler = self._other
        self._expat.StartDoctypeDeclHandler = self._doctype
        self._expat.SkippedEntityHandler = self._entity

    def units(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Text by language of each unit, with the number of its last line."""
        held: list[str] = []
        size = 0
        for number, line in read_lines(self.path):
            self._last = number
            held.append(line.replace("\r", " "))  # expat would count it as the end of a line
            size += len(line) + 1
            if size >= _CHUNK:
                yield from self._parse("\n".join([*held, ""]))
                held, size = [], 0
        yield from self._parse("\n".join([*held, ""]), last=True)

    @property
    def line(self) -> int:
        """The line that was reached."""
        return min(self._expat.CurrentLineNumber, self._last)

    def _parse(self, text: str, *, last: bool = False) -> list[tuple[int, dict[str, str]]]:
        self._waiting += len(text)
        try:
            self._expat.Parse(text, last)  # text, not bytes: so it is UTF-8 whatever the file says of itself
        except expat.ExpatError as error:
            raise self._error(f"not XML: {expat.ErrorString(error.code)}.") from None
        if self._waiting > _MAX_TOKEN:
            raise self._error(f"a tag or a comment of more than {_MAX_TOKEN} characters.")
        done, self._done = self._done, []
        return done

    def _error(self, what: str) -> DataError:
        return DataError(self.path, self.line, what)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._waiting = 0
        parent = self._open[-1] if self._open else ""
        if parent != _PARENTS.get(name, parent):
            raise self._error(f"<{name}> stands in <{parent[:40]}>, but belongs in <{_PARENTS[name]}>.")
        self._open.append(name)
        if len(self._open) > _MAX_DEPTH:
            raise self._error(f"nested deeper than {_MAX_DEPTH} tags.")
        if name == "tu":
            self._unit, self._size = {}, 0
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
            self._grow(len(self._language) + _OVERHEAD)
            if not 0 < len(self._language) <= _MAX_CODE:
                raise self._error("<tuv> without xml:lang, or with no code of a language there.")
        elif name == "seg":
            self._text, self._hidden = [], 0
        elif self._text is not None and (self._hidden or name in _MARKUP):
            self._hidden += 1

    def _end(self, name: str) -> None:
        self._waiting = 0
        self._open.pop()
        if name == "seg":
            self._unit.setdefault(self._language, "".join(self._text or ()))
            self._text = None
        elif self._text is not None:
            self._hidden = max(0, self._hidden - 1)
        elif name == "tu":
            self._done.append((self.line, self._unit))

    def _data(self, text: str) -> None:
        self._waiting = 0
        if self._text is not None and not self._hidden:
            self._grow(len(text))
            self._text.append(text)

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > LIMITS.line_bytes:
            raise self._error(f"a unit of more than {LIMITS.line_bytes} characters.")

    def _other(self, _: str) -> None:
        self._waiting = 0

    def _doctype(self, name: str, system: str | None, public: str | None, internal: bool) -> None:  # noqa: ARG002
        self._waiting = 0
        if internal:
            raise self._error("declarations in <!DOCTYPE … [: refused, for entities can grow without end. Remove them.")

    def _entity(self, name: str, _: bool) -> None:
        raise self._error(f"&{name[:40]}; is no entity of XML. Write the character itself.")
