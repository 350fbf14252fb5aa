"""The page: all sections in one file without scripts, images, fonts or network requests."""

import base64
import hashlib
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from markupsafe import Markup

from polyloom.figures.canvas import require_matplotlib
from polyloom.figures.palette import DARK, LIGHT, SCALE, text_color
from polyloom.report.elements import render
from polyloom.report.sections.comparison import compare_sources, comparison_section
from polyloom.report.sections.examples import Examples, examples_section, find_examples
from polyloom.report.sections.probes import donors_section, languages_section, weights_section
from polyloom.report.sections.scores import scores_section
from polyloom.report.sections.settings import commands_section, settings_section
from polyloom.report.sections.training import curves_section, mixture_section, parameters_section
from polyloom.report.sections.verdict import verdict_section
from polyloom.report.sources import Source, read_sources
from polyloom.version import __version__


def make_report(
    runs: Sequence[Path], *, output: Path, split: str = "test", num_examples: int = 3,
    progress: Callable[[str], None] = lambda _: None,
) -> str:  # fmt: skip
    """Write a report of one or more runs as an HTML page.

    Args:
        runs: Their folders. The first run is compared with each of the others.
        output: The file that the page will be written to, for the commands in it.
        split: Which scores: ``test`` or ``validation``.
        num_examples: How many sentences of each task to show. The runs are loaded to predict them, unless it is 0.
        progress: Called with what is being done.

    Raises:
        PolyloomError: Matplotlib is missing, a folder is no run, or a run is given twice.
    """
    require_matplotlib("report")
    sources = read_sources(runs, split=split)
    chosen = find_examples(sources, num_examples, progress=lambda name: progress(f"predicting examples with {name}"))
    progress("writing")
    options = [
        "" if split == "test" else f" --split {split}",
        "" if num_examples == 3 else f" --num-examples {num_examples}",
    ]
    line = f"polyloom report {' '.join(s.shell for s in sources)} -o {shlex.quote(str(output))}" + "".join(options)
    return render_page(sources, chosen, count=num_examples, line=line)


def render_page(sources: Sequence[Source], examples: Examples, *, count: int, line: str) -> str:
    """Put the page together.

    Args:
        sources: The runs.
        examples: Example sentences.
        count: How many of them were asked for.
        line: The command that makes this page.
    """
    compared = [compare_sources(sources[0], other) for other in sources[1:]]
    sections = [
        verdict_section(sources, compared),
        scores_section(sources),
        comparison_section(sources, compared),
        examples_section(examples, count),
        curves_section(sources),
        mixture_section(sources),
        parameters_section(sources),
        languages_section(sources),
        donors_section(sources),
        weights_section(sources),
        settings_section(sources),
        commands_section(sources, line),
    ]
    # The page has a content security policy that allows this style sheet alone, by its hash. So a script that came into
    # the page with a name or a text would not run.
    style = style_sheet()
    return render(
        "page.html",
        title=" · ".join(source.name for source in sources),
        sections=[section for section in sections if section],
        style=Markup(style),  # noqa: S704 - our own
        sha256=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        version=__version__,
    )


def style_sheet() -> str:
    """Return the style sheet: the palette, rules that put figures into dark mode, the scale of scores, and the rest."""

    def variables(palette: dict[str, str]) -> str:
        return "".join(f" --{name}: {color};" for name, color in palette.items())

    dark = f"@media (prefers-color-scheme: dark) {{ :root {{{variables(DARK)} }} }}\n"
    printed = f"@media print {{ :root {{{variables(LIGHT)} }} }}\n"
    # Figures have colours of the light palette as attributes. Rules of a style sheet take precedence over attributes,
    # so the same figures change with the palette.
    figures = "".join(
        f'svg [{kind}="{color}"]{{{kind}:var(--{name})}}\n'
        for name, color in LIGHT.items()
        for kind in ("fill", "stroke")
    )
    scale = "".join(f".s{i}{{background:{color};color:{text_color(color)}}}\n" for i, color in enumerate(SCALE))
    rest = Path(__file__).with_name("templates").joinpath("style.css").read_text(encoding="utf-8")
    return f"\n:root {{{variables(LIGHT)} }}\n{dark}{printed}{figures}{scale}{rest}"
