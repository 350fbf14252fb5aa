"""No row depends on its neighbours: threads, a small cache, and random batches, at full size (R3, R4, R5)."""

import copy
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations

import pytest
import torch

from polyloom.backbones import load_backbone
from polyloom.backbones.decoding import Decoding
from polyloom.conditions import Condition
from polyloom.data.records import Bitext, Tagged
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.inference.predictor import Predictor
from polyloom.methods.hyperx import HyperXConfig
from polyloom.model import Model
from tests.tasks.test_translation import LANGUAGES, model_for, sentence
from tests.tiny_run import TAGS, WORDS, write_backbone

MANY = [f"l{number:02}" for number in range(32)]


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    """A tagger of two tasks in 32 languages, whose weights are far from one another: 64 conditions."""
    folder = tmp_path_factory.mktemp("compositions")
    write_backbone(folder)
    torch.manual_seed(0)
    config = HyperXConfig(adapter_size=8, projection_size=8, hidden_size=8, embedding_size=8)
    model = Model(load_backbone(folder), config, languages=MANY, tasks={"pos": TAGS, "ner": ["O", "B-PER", "B-LOC"]})
    for parameter in model.method.parameters():
        parameter.data.mul_(4)
    return Predictor(model.eval(), tokenizer=load_tokenizer(folder))


def rows(count: int, seed: object) -> list[tuple[Condition, Tagged]]:
    draw = random.Random(str(seed))
    return [
        (
            Condition(draw.choice(["pos", "ner"]), draw.choice(MANY)),
            Tagged(tuple(draw.choices(WORDS, k=draw.randint(1, 12))), ()),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_eight_threads_answer_as_one(predictor, count):
    """Every thread has a copy of the model: one model runs one forward pass at a time."""
    asked = [rows(count, seed) for seed in range(8)]
    serial = [list(predictor.predict_mixed(part)) for part in asked]
    copies = [Predictor(copy.deepcopy(predictor.model), tokenizer=predictor.tokenizer) for _ in asked]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda pair: list(pair[0].predict_mixed(pair[1])), zip(copies, asked, strict=True)))
    assert found == serial


def test_a_cache_of_two_directions_gives_the_same_translations(tmp_path):
    texts = {language: [sentence(i + 1000 * n) for i in range(200)] for n, language in enumerate(LANGUAGES)}
    train_vocabulary(texts, tmp_path, config=VocabularyConfig(size=60), languages=LANGUAGES)
    tokenizer = load_tokenizer(str(tmp_path))
    decoding = Decoding(beams=2, max_ratio=0.5, max_extra=2)
    predictor, draw = Predictor(model_for(tokenizer), tokenizer=tokenizer, decoding=decoding), random.Random(0)
    directions = [Condition("mt", *pair) for pair in permutations(LANGUAGES, 2)]
    asked = [(draw.choice(directions), Bitext(draw.choice(texts[LANGUAGES[0]]), "")) for _ in range(1000)]
    assert {condition for condition, _ in asked} == set(directions)
    expected = predictor.translate(asked)
    assert len(set(expected)) > 100
    assert len(predictor.cache) == len(directions)
    predictor.cache.max_bytes = 2 * predictor.cache.num_bytes // len(directions)
    assert predictor.translate(asked) == expected
    assert len(predictor.cache) == 2


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_random_batches_give_each_row_what_it_gets_alone(predictor, count):
    """Order, neighbours and padding are random; the probabilities of labels differ by 1e-5 at most."""
    asked, draw, worst = rows(200, "batches"), random.Random(5), 0.0

    alone = {i: next(iter(predictor.predict_mixed([asked[i]], confidences=True))) for i in range(len(asked))}
    for _ in range(count):
        chosen = draw.sample(range(len(asked)), draw.randint(2, 24))
        found = list(predictor.predict_mixed([asked[i] for i in chosen], confidences=True))
        for i, (tags, confidences) in zip(chosen, found, strict=True):
            assert tags == alone[i][0]
            worst = max(worst, *(abs(a - b) for a, b in zip(confidences, alone[i][1], strict=True)))
    print(f"{count} batches: largest difference of a probability {worst:.1e}")
    assert worst <= 1e-5
