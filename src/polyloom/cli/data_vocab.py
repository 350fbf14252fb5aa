"""``polyloom data vocab``: learn a vocabulary from the corpora of a recipe, or from files."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from polyloom.data.catalog import Corpus
    from polyloom.data.tokenization.vocabulary import Report


@dataclass(frozen=True)
class _Side:
    """The lines of one language in a corpus, read anew each time.

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
    """The lines of a language in several corpora."""

    sides: tuple[_Side, ...]

    def __iter__(self) -> Iterator[str]:
        for side in self.sides:
            yield from side


def vocab(  # noqa: PLR0913 - options of a command
    recipe: Annotated[Path | None, typer.Argument(help="A YAML file: its mt and mlm corpora to train on.")] = None,
    *,
    into: Annotated[Path, typer.Option("-o", "--into", help="The folder to make.")],
    size: Annotated[int, typer.Option(min=5, help="Pieces; language tokens come on top.")] = 32_000,
    text: Annotated[list[str] | None, typer.Option(help="More text, as language=corpus or language=file.")] = None,
    temperature: Annotated[float, typer.Option(help="Languages have lines by their size to the power 1/T.")] = 5.0,
    coverage: Annotated[float, typer.Option(help="Share of characters that must not be unknown.")] = 0.99995,
    lines: Annotated[int, typer.Option(min=1, help="Lines to learn from.")] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="Which lines.")] = 0,
    mask: Annotated[bool, typer.Option("--mask", help="For encoders: with a token for masks.")] = False,
    root: Annotated[Path | None, typer.Option("--root", help="Where corpora lie. Else as the recipe says.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Learn a vocabulary that languages share, with a token for each, and show what it makes of them.

    A sentence that stands in several corpora of a language counts once.

    Example: polyloom data vocab --text en=en.txt --text de=de.txt -o vocabulary --size 8000
    """
    from rich.console import Console  # noqa: PLC0415

    from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary  # noqa: PLC0415

    languages, sides = _of_recipe(recipe, root) if recipe else ((), [])
    sides += [_of_option(one, root) for one in text or ()]
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
    typer.echo(json.dumps(report.to_dict(), indent=2, ensure_ascii=False) if as_json else _table(report), nl=as_json)


def _of_recipe(path: Path, root: Path | None) -> tuple[tuple[str, ...], list[_Side]]:
    """The languages of a recipe, and the text it trains on; other tasks than mt and mlm bring none."""
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
    found: dict[str, list[_Side]] = {}
    for side in sides:
        found.setdefault(side.language, []).append(side)
    return {language: _Lines(tuple(own)) for language, own in found.items()}


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
    return aligned(["language", "lines", "drawn", "pieces per word", "unknown characters"], rows)
