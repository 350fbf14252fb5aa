"""A kind of record and a task of one's own: read, trained, scored, predicted, streamed, served and shown."""

import asyncio
import json
from typing import Any

import pytest

import polyloom as pl
from polyloom.data.kinds import kind_of, prediction_to_dict
from polyloom.serve import Engine
from tests.shared import polyloom


def test_an_own_kind_of_record_goes_all_the_way(tmp_path, load_example):
    example = load_example("own_record")
    RatedText, RatingPrediction = example.RatedText, example.RatingPrediction
    run = pl.train(example.write_recipe(tmp_path), tmp_path / "run")
    (result,) = run.evaluate().results.values()
    assert result.scores[0].metric is example.MEAN_ERROR
    assert result.scores[0].value < 1.5, "a constant is wrong by 3"

    # Python: texts and records, alone and in lists; what is no text is refused with the words of the kind.
    good, bad = "ba do fi", "gu ko lem ko"
    inputs: list[Any] = [good, RatedText(bad, 0)]
    high, low = run.predict(inputs, "rating/north")
    assert isinstance(high, RatingPrediction)
    assert high.rating - low.rating > 2
    with pytest.raises(pl.PolyloomError, match="expected a text, or a record of its kind, not 3"):
        run.predict(3, "rating/north")  # type: ignore[arg-type]

    # Streams: lines of text and JSON.
    printed = polyloom("predict", run.path, "rating/north", stdin=f"{good}\n\n{bad}\n")
    assert printed == f"{high.rating:.1f}\n\n{low.rating:.1f}\n"
    given = {"text": good, "id": 3}
    line = polyloom("predict", run.path, "rating/north", "--input", "jsonl", stdin=json.dumps(given) + "\n")
    assert json.loads(line) == given | {"rating": pytest.approx(high.rating)}

    # Servers: an input that warms them up, and predictions as JSON and back.
    async def serve() -> list[Any]:
        async with Engine(run) as engine:
            return [(await engine.canary()).prediction, await engine.answer("rating/north", good)]

    warm, answer = asyncio.run(serve())
    assert isinstance(warm, RatingPrediction)
    assert prediction_to_dict(high) == {"rating": high.rating}
    assert answer.to_dict()["prediction"] == {"rating": pytest.approx(high.rating)}
    kind = kind_of(RatedText(good, 0))
    assert kind.from_dict({"rating": high.rating}) == high
    assert kind.to_value(RatedText(good, 0)) == good

    # The report shows an example with its rating.
    page = run.report(tmp_path / "report.html").read_text()
    assert any(line.partition(" | ")[2] in page for line in (tmp_path / "test.stars").read_text().splitlines())
