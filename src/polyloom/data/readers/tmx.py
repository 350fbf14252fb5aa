"""Read translation memories (TMX 1.1 to 1.4) unit by unit, in bounded memory.

Language codes are compared without case, and ``en`` also matches ``en-US``. In a segment, the content of ``bpt``,
``ept``, ``it``, ``ph`` and ``ut`` is markup of another format and is left out; the content of ``hi`` is text.

This uses expat, not `xml.etree`: the latter hides the line of an element, whether a DOCTYPE has declarations, and how
long a tag or comment is that has not ended. Errors would have no line, and memory would have no bound.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.parsers import expat

from polyloom.errors import DataError, suggest
from polyloom.io.files import LIMITS, read_lines

_PARENTS = {"tu": "body", "tuv": "tu", "seg": "tuv"}
_MARKUP = frozenset({"bpt", "ept", "it", "ph", "ut"})
_MAX_DEPTH = 100
_MAX_CODE = 40  # characters of a language code
_MAX_TOKEN = 4 * LIMITS.line_bytes  # expat holds a tag or a comment in memory until it ends
_CHUNK = 64 * 1024  # bytes; with each, expat reads an unfinished tag again from its start
_MAX_LANGUAGES = 100  # listed in an error


def read_tmx(path: Path, direction: tuple[str, str] | None) -> Iterator[tuple[str, str]]:
    """Read the units that have a text in both languages.

    Args:
        path: The file.
        direction: Source and target language. By default the two languages of the first unit, in its order.

    Yields:
        The source and the target text of each unit.
    """
    parser = _Parser(path)
    languages: dict[str, None] = {}
    empty = True
    for number, unit in parser.units():
        if len(languages) < _MAX_LANGUAGES:
            languages.update(dict.fromkeys(unit))
        if direction is None:
            if len(unit) != 2:
                what = f"a unit with {len(unit)} languages. Say which two are meant. Known: {', '.join(unit)}."
                raise DataError(path, number, what)
            first, second = unit
            direction = first, second
        # Two languages such as `en` and `en-US` may match the same text, which is no translation of itself.
        source, target = (_match(language, unit) for language in direction)
        if source is not None and target is not None and source != target:
            empty = False
            yield unit[source], unit[target]
    if not languages:
        raise DataError(path, parser.line, "no translations (<tu>) in this file.")
    if empty:
        missing = next((language for language in direction or () if _match(language, languages) is None), "")
        what = f"no unit has both {' and '.join(direction or ())}. {suggest(missing, languages)}"
        raise DataError(path, parser.line, what)


def _match(language: str, codes: Mapping[str, object]) -> str | None:
    """Find the code of a language, or else the first code of one of its varieties."""
    name = _normalized(language)
    for code in codes:
        if _normalized(code) == name:
            return code
    for code in codes:
        if _normalized(code).startswith(f"{name}-"):
            return code
    return None


def _normalized(code: str) -> str:
    return code.casefold().replace("_", "-")


class _Parser:
    """Collect units from the events of expat."""

    def __init__(self, path: Path) -> None:
        self.path, self._last_line, self._fed, self._unit_start = path, 1, 0, 0
        self._open: list[str] = []  # names of elements
        self._units: list[tuple[int, dict[str, str]]] = []
        self._unit: dict[str, str] = {}
        self._language = ""
        self._text: list[str] = []
        self._expat = expat.ParserCreate("UTF-8")  # whatever encoding the file declares
        self._expat.buffer_text = True
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.CharacterDataHandler = self._data
        self._expat.StartDoctypeDeclHandler = self._doctype
        self._expat.SkippedEntityHandler = self._entity

    def units(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the number of the last line and the texts by language of each unit."""
        chunk = bytearray()
        for number, line in read_lines(self.path):
            self._last_line = number
            chunk += line.replace("\r", " ").encode() + b"\n"  # expat counts \r as a line end
            if len(chunk) >= _CHUNK:
                yield from self._parse(chunk)
                chunk.clear()
        yield from self._parse(chunk, last=True)

    @property
    def line(self) -> int:
        """The line that the parser has reached."""
        return min(self._expat.CurrentLineNumber, self._last_line)

    def _parse(self, chunk: bytearray, *, last: bool = False) -> list[tuple[int, dict[str, str]]]:
        """Parse a part of the file, and return the units that ended in it."""
        self._units = []
        self._fed += len(chunk)
        try:
            self._expat.Parse(chunk, last)
        except expat.ExpatError as error:
            raise self._error(f"not XML: {expat.ErrorString(error.code)}.") from None
        # Sizes are checked after every chunk, too: what has not ended yet has no event.
        if self._fed - self._expat.CurrentByteIndex > _MAX_TOKEN:
            raise self._error(f"a tag or a comment of more than {_MAX_TOKEN} bytes.")
        self._check_size()
        return self._units

    def _check_size(self) -> None:
        if "tu" in self._open and self._expat.CurrentByteIndex - self._unit_start > LIMITS.line_bytes:
            raise self._error(f"a unit of more than {LIMITS.line_bytes} bytes.")

    def _error(self, what: str) -> DataError:
        return DataError(self.path, self.line, what)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        parent = self._open[-1] if self._open else ""
        if parent != _PARENTS.get(name, parent):
            raise self._error(f"<{name}> stands in <{parent[:40]}>, but belongs in <{_PARENTS[name]}>.")
        self._open.append(name)
        if len(self._open) > _MAX_DEPTH:
            raise self._error(f"nested deeper than {_MAX_DEPTH} tags.")
        if name == "tu":
            self._unit, self._unit_start = {}, self._expat.CurrentByteIndex
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
            if not 0 < len(self._language) <= _MAX_CODE:
                raise self._error("<tuv> without xml:lang, or with no code of a language there.")
        elif name == "seg":
            self._text = []

    def _end(self, name: str) -> None:
        if name == "seg":
            # Of several segments with the same code in a unit, the first counts.
            self._unit.setdefault(self._language, "".join(self._text))
        elif name == "tu":
            self._check_size()
            self._units.append((self.line, self._unit))
        self._open.pop()

    def _data(self, text: str) -> None:
        if "seg" in self._open and _MARKUP.isdisjoint(self._open):
            self._text.append(text)

    def _doctype(self, name: str, system: str | None, public: str | None, internal: bool) -> None:  # noqa: ARG002
        if internal:
            raise self._error("declarations in <!DOCTYPE … [: refused, for entities can grow without end. Remove them.")

    def _entity(self, name: str, _: bool) -> None:
        raise self._error(f"&{name[:40]}; is no entity of XML. Write the character itself.")
