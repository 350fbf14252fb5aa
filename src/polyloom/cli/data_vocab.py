"""``polyloom data vocab``: train a vocabulary on the corpora of a recipe, or on files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyloom.io.plain_json import to_json

if TYPE_CHECKING:
    from polyloom.data.catalog import Corpus


@dataclass(frozen=True)
class _Lines:
    """The lines of one language in several corpora; iterating reads the corpora again."""

    language: str
    corpora: list[tuple["Corpus", tuple[str, str] | None]]
    """Each with source and target if it is a corpus of translations."""

    def __iter__(self) -> Iterator[str]:
        from polyloom.data.records import Bitext, Text  # noqa: PLC0415

        for corpus, pair in self.corpora:
            for record in corpus.records("bitext", direction=pair) if pair else corpus.records("text"):
                if isinstance(record, Bitext):
                    yield record.source if pair and self.language == pair[0] else record.target
                elif isinstance(record, Text):
                    yield record.text


def vocab(  # noqa: PLR0913 - options of a command
    recipe: Annotated[Path | None, typer.Argument(help="Recipe whose raw text and translations are used.")] = None,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="New folder.")],
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

    from polyloom.cli.render.tables import aligned  # noqa: PLC0415
    from polyloom.data.catalog import resolve  # noqa: PLC0415
    from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary  # noqa: PLC0415
    from polyloom.errors import PolyloomError  # noqa: PLC0415

    languages: tuple[str, ...] = ()
    texts: dict[str, _Lines] = {}
    if recipe:
        languages = _add_texts_of_recipe(texts, recipe, root)
    for option in text or ():
        language, equals, name = option.partition("=")
        if not (equals and language and name):
            raise PolyloomError(f"--text {option}: expected language=file, such as en=en.txt.")
        texts.setdefault(language, _Lines(language, [])).corpora.append((resolve(name, root=root), None))
    config = VocabularyConfig(size=size, temperature=temperature, coverage=coverage, lines=lines, seed=seed, mask=mask)
    with Console(stderr=True).status("") as status:
        report = train_vocabulary(texts, output, config=config, languages=languages, progress=status.update)
    if as_json:
        typer.echo(to_json(report.to_dict(), indent=2))
        return
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
    typer.echo(aligned(["language", "lines", "drawn", "tokens per word", "unknown characters"], rows), nl=False)


def _add_texts_of_recipe(texts: dict[str, _Lines], path: Path, root: Path | None) -> tuple[str, ...]:
    """Add the raw text and the translations that a recipe trains on, by language; return the recipe's languages."""
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.config import load_recipe  # noqa: PLC0415 - imports torch
    from polyloom.data.catalog import resolve  # noqa: PLC0415
    from polyloom.errors import ConfigError  # noqa: PLC0415
    from polyloom.tasks import TASKS  # noqa: PLC0415

    recipe = load_recipe(path)
    root = root or (Path(recipe.data.root) if recipe.data.root else None)
    for text, names in recipe.data.train.items():
        condition = Condition.parse(text)
        if TASKS[condition.task].kind in ("text", "bitext"):
            pair = (condition.source, condition.target) if condition.target else None
            for corpus in [resolve(name, root=root) for name in names]:
                for language in condition.languages:
                    texts.setdefault(language, _Lines(language, [])).corpora.append((corpus, pair))
    if not texts:
        raise ConfigError(str(path), ["data.train: names no corpora for mt or mlm. Or give text: --text en=en.txt"])
    return recipe.languages
