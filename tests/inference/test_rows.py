"""What is wrong with one row stays in that row, and nothing is cut without a word."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from polyloom.backbones.decoding import Decoding
from polyloom.conditions import Condition
from polyloom.config import load_recipe
from polyloom.data.records import Choices, Pair, Question, Record, Tagged
from polyloom.data.tokenization.sentences import split_sentences, split_to_fit
from polyloom.errors import PolyloomError, PredictionError
from polyloom.evaluate.matrix import Matrix
from polyloom.workflows.run import Run
from polyloom.workflows.train import train_recipe
from tests.tiny_run import sentences, tiny_recipe

TASKS = ("pos", "ner", "dep", "nli", "copa", "qa")


def train_tiny(folder: Path, method: str, **sections: object) -> Path:
    train_recipe(load_recipe(tiny_recipe(folder, method, **sections)), folder / "run")  # type: ignore[arg-type]
    return folder / "run"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run for rows of at most 8 tokens, so that many pairs are cut."""
    train = {"steps": 3, "max_length": 8}
    return train_tiny(tmp_path_factory.mktemp("rows"), "hyperx", tasks=TASKS, train=train)


def poison(run: Run, language: str) -> None:
    """Make the weights of a language NaN."""
    row = list(run.model.method.languages).index(language)
    for table in run.model.method.growing("language"):
        for parameter in table.parameters():
            parameter.data[row] = torch.nan


def record_of(task: str, words: Sequence[str]) -> Record:
    if task == "nli":
        return Pair(" ".join(words[:2]), words[2], "")
    if task == "copa":
        return Choices(words[0], words[1], tuple(words), "")  # three choices to six
    return Question(" ".join([*words, *words, *words]), words[0], ()) if task == "qa" else Tagged(tuple(words), ())


def records(count: int) -> list[tuple[Condition, Record]]:
    asked: list[tuple[Condition, Record]] = []
    for number, words in enumerate(sentences("test")[:count]):
        task, language = TASKS[number % len(TASKS)], ("aa", "bb")[number // len(TASKS) % 2]
        asked.append((Condition(task, language), record_of(task, words)))
    return asked


@pytest.mark.parametrize("task", TASKS)
def test_a_row_whose_weights_are_nan_loses_itself_alone(trained, task):
    run = Run.load(trained)
    good = records(31)
    alone = list(run.predictor.predict_mixed(good))
    poison(run, "cc")
    poisoned = next(record for condition, record in good if condition.task == task)
    asked = [*good[:9], (Condition(task, "cc"), poisoned), *good[9:]]
    made = list(run.predictor.predict_mixed(asked, strict=False))
    assert isinstance(error := made.pop(9), PredictionError)
    assert str(error).startswith(f"{task}/cc: the output of the model is not finite")
    assert made == alone
    with pytest.raises(PredictionError, match=f"{task}/cc"):
        list(run.predictor.predict_mixed(asked))


def test_a_generated_classifier_that_is_nan_is_noticed(tmp_path):
    run = Run.load(train_tiny(tmp_path, "psf", tasks=("pos",), train={"steps": 1}))
    poison(run, "bb")
    words = Tagged(("ba", "do"), ())
    asked = [(Condition("pos", language), words) for language in ("aa", "bb")]
    good, bad = run.predictor.predict_mixed(asked, strict=False)
    assert len(good) == 2
    assert isinstance(bad, PredictionError)


def test_scores_of_a_model_that_is_nan_are_refused(trained):
    run = Run.load(trained)
    poison(run, "cc")
    with pytest.raises(PredictionError, match="nli/cc: the output of the model is not finite"):
        run.evaluate({"nli/cc": str(trained.parent / "cc-test.pairs.tsv")})


def test_an_evaluation_records_how_many_inputs_were_cut(trained):
    run = Run.load(trained)
    pairs = (trained.parent / "aa-test.pairs.tsv").read_text().splitlines()
    long = sum(len(pair.split()[:-1]) + 3 > 8 for pair in pairs)
    assert 0 < long < len(pairs)
    matrix = run.evaluate(tasks=["nli", "pos"], languages=["aa"])
    found = {str(condition): (result.cut, result.split) for condition, result in matrix.results.items()}
    assert found == {"nli/aa": (long, 0), "pos/aa": (0, 0)}
    stored = Matrix.read(trained / "evaluations" / "test.json").results
    assert {str(condition): result.cut for condition, result in stored.items()} == {"nli/aa": long, "pos/aa": 0}


def test_the_python_api_warns_of_a_cut(trained):
    run = Run.load(trained)
    with pytest.warns(UserWarning, match=r"1 input was longer than 8 tokens and cut \(nli/aa: 1\)"):
        run.predict(("ba do fi gu", "ko lem mur"), "nli/aa")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.predict("ba do fi gu ko lem mur sat ba do fi", "pos/aa")


def test_a_sentence_that_a_parser_has_no_memory_for_is_refused(trained, tmp_path):
    """A parser scores all pairs of words: 8,000 words took 4.3 GB and two minutes."""
    run = Run.load(trained)
    with pytest.raises(PolyloomError, match=r"dep: a sentence of 8,000 words .* at most 2,000"):
        run.predict(("ba",) * 8000, "dep/aa")
    rows = "".join(f"{i}\tba\t_\tNOUN\t_\t_\t{i - 1}\t{'dep' if i > 1 else 'root'}\t_\t_\n" for i in range(1, 8001))
    (tmp_path / "long.conllu").write_text(f"{rows}\n")
    with pytest.raises(PolyloomError, match="dep: a sentence of 8,000 words"):
        run.evaluate({"dep/aa": str(tmp_path / "long.conllu")})
    assert len(run.predict(("ba",) * 8000, "pos/aa")) == 8000


@pytest.mark.parametrize(
    ("value", "condition"), [("ba \ud800", "pos/aa"), (("ba", "\udfff"), "dep/aa"), (("ba", "\ud800"), "nli/aa")]
)
def test_text_that_is_no_text_is_a_typed_error(trained, value, condition):
    with pytest.raises(PolyloomError, match=f"{condition}: .* has half a surrogate pair"):
        Run.load(trained).predict(value, condition)


def test_beams_have_a_limit():
    assert Decoding(beams=100).beams == 100
    for beams in (0, -1, 101, 100_000):
        with pytest.raises(PolyloomError, match=f"beams: {beams} is not a number from 1 to 100"):
            Decoding(beams=beams)


def sizes(texts: Sequence[str]) -> list[int]:
    return list(map(len, texts))


@pytest.mark.parametrize(
    "text",
    [
        "One two three. Four five, six seven eight nine ten. Eleven!",
        "one two three four five six seven eight nine ten eleven twelve",
        "a" * 100,
        "Eins, zwei; drei: vier fünf sechs sieben acht neun zehn elf zwölf, dreizehn " + "x" * 50,
        "我们今天去学校。他们明天也去学校，你呢？好的。",
        " a  b ",
    ],
)  # fmt: skip
def test_parts_of_a_text_fit_and_hold_all_of_it(text):
    parts = split_to_fit(text, sizes, 20)
    assert all(0 < len(part) <= 20 for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


def test_a_text_is_split_where_it_hurts_least():
    def words(texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    assert split_to_fit("Aa bb cc dd. Ee ff.", words, 5) == ["Aa bb cc dd.", "Ee ff."]
    long = "Aa bb, cc dd, ee ff, gg hh ii jj kk ll. Mm."
    assert split_to_fit(long, words, 5) == ["Aa bb, cc dd,", "ee ff,", "gg hh ii jj kk", "ll.", "Mm."]


@pytest.mark.parametrize("text", ["." * 50_000, "A. " * 17_000, ". " * 25_000, ".a" * 25_000, '... " ' * 10_000])
def test_hostile_texts_are_split_in_time(text):
    assert len(split_sentences(text)) <= 25_000
    assert len(split_to_fit(text[:20_000], sizes, 200)) >= 50
