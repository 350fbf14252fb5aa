"""A kind of record and a task of one's own: read, trained, scored, predicted, streamed, served and shown."""

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import polyloom as pl
from polyloom.data.kinds import RecordKind, kind_of, prediction_to_dict
from polyloom.data.records import Record
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.io.files import File
from polyloom.metrics import Metric
from polyloom.serve import Engine
from polyloom.tasks.base import EncodedExample, Example, HeadInputs, Task, TaskBatch, Tokens, linear_classifier
from tests.shared import polyloom
from tests.tiny_run import SIZES, WORDS, tiny_recipe


@dataclass(frozen=True, slots=True)
class RatedText(Record):
    """A text with a rating from 0 to 10."""

    text: str
    rating: int


@dataclass(frozen=True)
class RatingPrediction:
    """A predicted rating."""

    rating: float


class RatedKind(RecordKind):
    """Texts with ratings."""

    name = "rated"
    record = RatedText
    prediction = RatingPrediction

    def from_texts(self, texts: Sequence[str]) -> RatedText:
        return RatedText(texts[0], 0)

    def texts(self, record: RatedText) -> tuple[str, ...]:
        return (record.text,)

    def gold(self, record: RatedText) -> str:
        return str(record.rating)


def read_ratings(file: File) -> Iterator[RatedText]:
    """Read lines such as ``7 | ba do fi``."""
    for line in file.path.read_text().splitlines():
        rating, _, text = line.partition(" | ")
        yield RatedText(text, int(rating))


ERROR = Metric("mean_error", ("error", "texts"), lambda sums: sums[..., 0] / sums[..., 1], higher_is_better=False)


class Rate(Task):
    """Predict the rating of a text as a number."""

    name = "rate"
    kind = "rated"
    columns: ClassVar[Any] = {"tokens": "ints", "rating": "int"}
    metrics = (ERROR,)
    summary = "ratings of texts: mean absolute error"
    needs_labels = False

    def __init__(self, config, *, width: int) -> None:
        super().__init__(config, width=width)
        self.head = linear_classifier(width, 1)

    @classmethod
    def encode(
        cls, records: Sequence[Any], tokenizer: Tokenizer, index: dict[str, int] | None = None
    ) -> Iterator[EncodedExample]:
        for record, tokens in zip(records, tokenizer.text([record.text for record in records]), strict=True):
            rating = {} if index is None else {"rating": record.rating}
            yield {"tokens": tokens, "length": len(tokens) + tokenizer.num_special(pair=False), **rating}

    def collate(self, examples: Sequence[Example], *, tokenizer: Tokenizer, max_length: int) -> TaskBatch:
        room = max_length - tokenizer.num_special(pair=False)
        sequences = [Tokens(tokenizer.single([int(t) for t in example.row["tokens"][:room]])) for example in examples]
        ratings = [int(example.row["rating"]) for example in examples if "rating" in example.row]
        targets = {"rating_B": torch.tensor(ratings, dtype=torch.float32)} if ratings else {}
        return TaskBatch(sequences, range(len(examples)), targets, len(examples))

    def scores(self, states: HeadInputs) -> Tensor:
        score_B: Tensor = 5 + 5 * self.head(states.hidden_BTD[:, 0])[:, 0]
        return score_B

    def loss(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        return ((self.scores(states) - rows.targets["rating_B"]) / 5).square().sum()

    def decode(self, states: HeadInputs, rows: TaskBatch) -> list[Any]:
        return [round(score, 2) for score in self.scores(states).tolist()]

    def statistics(self, records: Sequence[Any], predictions: Sequence[Any]) -> Any:
        pairs = zip(records, predictions, strict=True)
        return torch.tensor([[abs(record.rating - rating), 1.0] for record, rating in pairs]).numpy()

    @classmethod
    def mistakes(cls, record: Any, prediction: Any) -> list[int]:
        return [0] if abs(record.rating - prediction) >= 1 else []

    @classmethod
    def prediction(cls, record: Any, decoded: Any, score: Any) -> RatingPrediction:
        return RatingPrediction(decoded)


def write_recipe(folder: Path) -> Path:
    """The rating is 8 if the first word is from one half of the vocabulary, else 2."""
    settings = json.loads(tiny_recipe(folder, "full", optim={"lr": 1e-3}, train={"steps": 60}).read_text())
    for section, split in {"train": "train", "validation": "dev", "test": "test"}.items():
        draw = random.Random(split)
        lines = []
        for _ in range(SIZES[split]):
            half, rating = draw.choice(((WORDS[:4], 8), (WORDS[4:], 2)))
            lines.append(f"{rating} | {' '.join(draw.choices(half, k=4))}\n")
        (folder / f"{split}.stars").write_text("".join(lines))
        settings["data"][section] = {"rate/aa": str(folder / f"{split}.stars")}
    settings |= {"tasks": {"rate": {}}, "languages": ["aa"]}
    (folder / "recipe.yaml").write_text(json.dumps(settings))
    return folder / "recipe.yaml"


@pytest.fixture
def _registered(own_registries: None) -> None:
    """Everything by public functions."""
    pl.register_record(RatedKind)
    pl.register_reader("stars", "rated", read_ratings)
    pl.register_metric(ERROR)
    pl.register_task(Rate)


@pytest.mark.usefixtures("_registered")
def test_an_own_kind_of_record_goes_all_the_way(tmp_path):
    run = pl.train(write_recipe(tmp_path), tmp_path / "run")
    (result,) = run.evaluate().results.values()
    assert result.scores[0].metric is ERROR
    assert result.scores[0].value < 1.5, "a constant is wrong by 3"

    # Python: texts and records, alone and in lists; what is no text is refused with the words of the kind.
    good, bad = "ba do fi gu", " ".join(WORDS[4:8])
    inputs: list[Any] = [good, RatedText(bad, 0)]
    high, low = run.predict(inputs, "rate/aa")
    assert isinstance(high, RatingPrediction)
    assert high.rating - low.rating > 2
    with pytest.raises(pl.PolyloomError, match="expected a text, or a record of its kind, not 3"):
        run.predict(3, "rate/aa")  # type: ignore[arg-type]

    # Streams: lines of text and JSON.
    assert polyloom("predict", run.path, "rate/aa", stdin=f"{good}\n\n{bad}\n") == f"{high.rating}\n\n{low.rating}\n"
    given = {"text": good, "id": 3}
    line = polyloom("predict", run.path, "rate/aa", "--input", "jsonl", stdin=json.dumps(given) + "\n")
    assert json.loads(line) == given | {"rating": high.rating}

    # Servers: an input that warms them up, and predictions as JSON and back.
    async def serve() -> list[Any]:
        async with Engine(run) as engine:
            return [(await engine.canary()).prediction, await engine.answer("rate/aa", good)]

    warm, answer = asyncio.run(serve())
    assert isinstance(warm, RatingPrediction)
    assert answer.to_dict()["prediction"] == prediction_to_dict(high) == {"rating": high.rating}
    kind = kind_of(RatedText(good, 0))
    assert kind.from_dict({"rating": high.rating}) == high
    assert kind.to_value(RatedText(good, 0)) == good

    # The report shows an example with its rating.
    page = run.report(tmp_path / "report.html").read_text()
    assert any(line.partition(" | ")[2] in page for line in (tmp_path / "test.stars").read_text().splitlines())
