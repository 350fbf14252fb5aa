"""A page as a strict reader finds it: every element closed where it should be, with its attributes and its text."""

from html.parser import HTMLParser

VOID = {"meta", "br", "col"}


class Page(HTMLParser):
    """Parsed markup.

    Attributes:
        elements: Every element's name and attributes, in order.
        texts: Text of every element that holds text alone, with the element's name.
    """

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(markup)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs):
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute of {tag} is there twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open, tag
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self._open[-1] if self._open else "", data))

    def text(self) -> str:
        return " ".join(text for name, text in self.texts if name != "style")

    def attributes(self, name: str) -> list[str]:
        return [value or "" for _, attributes in self.elements for key, value in attributes.items() if key == name]

    def names(self) -> set[str]:
        return {name for name, _ in self.elements}
