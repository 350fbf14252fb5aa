"""``polyloom data vocab``: train a vocabulary on the corpora of a recipe, or on files."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyloom.io.plain_json import to_json

if TYPE_CHECKING:
    from polyloom.data.catalog import Corpus
    from polyloom.data.tokenization.vocabulary import Report


@dataclass(frozen=True)
class _Side:
    """The lines of one language in a corpus; iterating reads the corpus again.

    Attributes:
        corpus: Where they are.
        pair: Source and target, if it is a corpus of translations.
        language: Which of them.
    """

    corpus: "Corpus"
    pair: tuple[str, str] | None
    language: str

    def __iter__(self) -> Iterator[str]:
        from polyloom.data.records import Bitext, Text  # noqa: PLC0415

        records = self.corpus.records("bitext", direction=self.pair) if self.pair else self.corpus.records("text")
        for record in records:
            if isinstance(record, Bitext):
                yield record.source if self.pair and self.language == self.pair[0] else record.target
            elif isinstance(record, Text):
                yield record.text


@dataclass(frozen=True)
class _Lines:
    """The lines of one language in several corpora."""

    sides: tuple[_Side, ...]

    def __iter__(self) -> Iterator[str]:
        for side in self.sides:
            yield from side


def vocab(  # noqa: PLR0913 - options of a command
    recipe: Annotated[Path | None, typer.Argument(help="Recipe whose raw text and translations are used.")] = None,
    *,
    into: Annotated[Path, typer.Option("-o", "--into", help="New folder.")],
    size: Annotated[int, typer.Option(min=5, help="Number of tokens, without language tokens.")] = 32_000,
    text: Annotated[list[str] | None, typer.Option(help="Further text: language=corpus or language=file.")] = None,
    temperature: Annotated[
        float, typer.Option(help="Sampling temperature T: lines in proportion to size^(1/T).")
    ] = 5.0,
    coverage: Annotated[float, typer.Option(help="Share of characters that the vocabulary covers.")] = 0.99995,
    lines: Annotated[int, typer.Option(min=1, help="Number of sampled lines.")] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample.")] = 0,
    mask: Annotated[bool, typer.Option("--mask", help="Add a mask token, for encoders.")] = False,
    root: Annotated[Path | None, typer.Option("--root", help="Data root. Default: that of the recipe.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Train a shared vocabulary (SentencePiece unigram) with a token per language, and show statistics per language.

    A sentence that occurs in several corpora of a language counts once.

    Example: polyloom data vocab --text en=en.txt --text de=de.txt -o vocabulary --size 8000
    """
    from rich.console import Console  # noqa: PLC0415

    from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary  # noqa: PLC0415

    languages, sides = _of_recipe(recipe, root) if recipe else ((), [])
    sides += [_of_option(option, root) for option in text or ()]
    with Console(stderr=True).status("") as status:
        report = train_vocabulary(
            _by_language(sides),
            into,
            config=VocabularyConfig(
                size=size, temperature=temperature, coverage=coverage, lines=lines, seed=seed, mask=mask
            ),
            languages=languages,
            progress=status.update,
        )
    typer.echo(to_json(report.to_dict(), indent=2) if as_json else _table(report), nl=as_json)


def _of_recipe(path: Path, root: Path | None) -> tuple[tuple[str, ...], list[_Side]]:
    """Return the languages of a recipe and its training text."""
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.config import load_recipe  # noqa: PLC0415 - imports torch
    from polyloom.data.catalog import resolve  # noqa: PLC0415
    from polyloom.errors import ConfigError  # noqa: PLC0415
    from polyloom.tasks import TASKS  # noqa: PLC0415

    recipe = load_recipe(path)
    root = root or (Path(recipe.data.root) if recipe.data.root else None)
    sides = []
    for text, names in recipe.data.train.items():
        condition = Condition.parse(text)
        if TASKS[condition.task].kind in ("text", "bitext"):
            pair = (condition.source, condition.target) if condition.target else None
            corpora = [resolve(name, root=root) for name in names]
            sides += [_Side(corpus, pair, language) for corpus in corpora for language in condition.languages]
    if not sides:
        raise ConfigError(str(path), ["data.train: names no corpora for mt or mlm. Or give text: --text en=en.txt"])
    return recipe.languages, sides


def _of_option(text: str, root: Path | None) -> _Side:
    from polyloom.data.catalog import resolve  # noqa: PLC0415
    from polyloom.errors import PolyloomError  # noqa: PLC0415

    language, equals, name = text.partition("=")
    if not (equals and language and name):
        raise PolyloomError(f"--text {text}: expected language=file, such as en=en.txt.")
    return _Side(resolve(name, root=root), None, language)


def _by_language(sides: Iterable[_Side]) -> Mapping[str, _Lines]:
    by_language: dict[str, list[_Side]] = {}
    for side in sides:
        by_language.setdefault(side.language, []).append(side)
    return {language: _Lines(tuple(lines)) for language, lines in by_language.items()}


def _table(report: "Report") -> str:
    from polyloom.cli.render.tables import aligned  # noqa: PLC0415

    rows = [
        [
            language,
            f"{share.available:,}",
            f"{share.drawn:,}",
            f"{share.tokens / share.words:.2f}",
            f"{100 * share.unknown / share.characters:.4f} %",
        ]
        for language, share in report.shares.items()
    ]
    return aligned(["language", "lines", "drawn", "tokens per word", "unknown characters"], rows)
