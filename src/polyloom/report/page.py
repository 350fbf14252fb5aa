"""The page: all sections in one file that needs nothing else, and lets nothing else in."""

import base64
import hashlib
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from polyloom.report.colors import scale_css
from polyloom.report.comparison import comparison_section
from polyloom.report.example_view import examples_section
from polyloom.report.examples import Examples, find_examples
from polyloom.report.html import Markup, tag
from polyloom.report.overview import commands_section, overview_section
from polyloom.report.probes import probe_sections
from polyloom.report.scores import scores_section
from polyloom.report.sources import Source, read_sources
from polyloom.report.training import training_sections
from polyloom.version import __version__


def make_report(
    runs: Sequence[Path], *, output: Path, split: str = "test", examples: int = 3,
    progress: Callable[[str], None] = lambda _: None,
) -> str:  # fmt: skip
    """The report of one or more runs as a page; of several, the first is what the others are compared with.

    Args:
        runs: Their folders.
        output: The file it will be written to, which the page names in its commands.
        split: Which corpora were scored.
        examples: How many sentences of each task are shown; the runs are loaded to answer them, unless it is 0.
        progress: Called with what is being done.
    """
    sources = read_sources(runs, split=split)
    found = find_examples(sources, examples, progress=lambda name: progress(f"asking {name} for examples"))
    progress("writing")
    options = ["" if split == "test" else f" --on {split}", "" if examples == 3 else f" --examples {examples}"]
    line = f"polyloom report {' '.join(s.shell for s in sources)} -o {shlex.quote(str(output))}" + "".join(options)
    return render(sources, found, count=examples, line=line)


def render(sources: Sequence[Source], examples: Examples, *, count: int, line: str) -> str:
    """Put the page together; `line` is the command that made it."""
    sections = [
        overview_section(sources),
        scores_section(sources),
        comparison_section(sources),
        examples_section(examples, count),
        *training_sections(sources),
        *probe_sections(sources),
        commands_section(sources, line),
    ]
    shown = [one for one in sections if one]
    title = " · ".join(source.name for source in sources)
    body = tag(
        "body",
        tag("a", "To the content", href="#main", class_="skip"),
        tag("header", tag("h1", title), tag("p", f"Report of polyloom {__version__}")),
        _contents(shown),
        tag("main", *shown, id="main"),
    )
    page = tag("html", _head(title), body, lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def _head(title: str) -> Markup:
    """No script, no picture, no font, no request; of styles only this one, by its hash."""
    style = Markup("\n" + Path(__file__).with_name("style.css").read_text(encoding="utf-8") + scale_css())
    sha256 = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{sha256}'; base-uri 'none'; form-action 'none'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title}: report"),
        tag("style", style),
    )


def _contents(sections: Sequence[Markup]) -> Markup:
    found = [re.search(r'<h2 id="(\w+)-title">(.*?)</h2>', one) for one in sections]
    links = (tag("li", tag("a", Markup(m[2]), href=f"#{m[1]}")) for m in found if m)
    return tag("nav", tag("ul", *links), aria_label="Contents")
