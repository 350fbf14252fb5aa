"""Translation: every row with its own languages, on both sides, in training and in search."""

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polyloom.backbones import backbone_from_config
from polyloom.backbones.decoding import Decoding
from polyloom.conditions import Condition
from polyloom.data.kinds import StreamItem
from polyloom.data.records import Bitext
from polyloom.data.tokenization.sentences import join_sentences, split_sentences
from polyloom.data.tokenization.tokenizer import Tokenizer, load_tokenizer
from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.errors import ConditionError, PredictionError
from polyloom.inference.cache import WeightCache
from polyloom.inference.predictor import Predictor
from polyloom.inference.translate import translate, translate_all
from polyloom.model import Model
from polyloom.tasks import TASKS, build_task
from polyloom.tasks.base import Example
from polyloom.tasks.batch import make_batch
from polyloom.tasks.translation import Translation
from tests.contracts.tiny import CONFIGS, tiny_config
from tests.shared import nightly

LANGUAGES = ["en", "de", "sw", "tr", "yo", "fi", "fr"]
DIRECTIONS = [f"mt/{a}/{b}" for a in LANGUAGES for b in LANGUAGES if a != b][:32]
SYLLABLES = ["ka", "lo", "mi", "ne", "ru", "sa", "ti", "vo"]


def sentence(seed: int) -> str:
    words = random.Random(seed)
    return " ".join("".join(words.choices(SYLLABLES, k=words.randint(1, 3))) for _ in range(words.randint(2, 9)))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("vocabulary")
    texts = {language: [sentence(i + 1000 * n) for i in range(200)] for n, language in enumerate(LANGUAGES)}
    train_vocabulary(texts, folder, config=VocabularyConfig(size=60), languages=LANGUAGES)
    return load_tokenizer(str(folder))


def model_for(tokenizer: Tokenizer, method: str = "hyper-adapters", family: str = "m2m_100", **of_method: Any) -> Model:
    torch.manual_seed(3)
    special = {
        "pad_token_id": tokenizer.pad_id,
        "eos_token_id": tokenizer.eos_id,
        "decoder_start_token_id": tokenizer.eos_id,
    }
    settings = CONFIGS[family] | special | {"model_type": family, "vocab_size": tokenizer.vocab_size}
    if "t5" not in family:
        settings["max_position_embeddings"] = 100
    model = Model(
        backbone_from_config(settings),
        tiny_config(method, **of_method),
        languages=LANGUAGES,
        tasks=["mt"],
        directions=["*/*"],
    )
    with torch.no_grad():
        for parameter in model.method.parameters():
            parameter.normal_(std=0.3)
    return model.eval()


def examples(tokenizer: Tokenizer, conditions: list[str] = DIRECTIONS) -> list[Example]:
    records = [Bitext(sentence(i), sentence(i + 500)) for i in range(len(conditions))]
    rows = TASKS["mt"].encode(records, tokenizer)
    return [Example(Condition.parse(c), row) for c, row in zip(conditions, rows, strict=True)]


def batch_of(model: Model, tokenizer: Tokenizer, chosen: list[Example]):
    return make_batch(chosen, tasks=model.tasks, tokenizer=tokenizer, max_length=90)


def asked(example: Example) -> Example:
    return example._replace(row={**example.row, "target": []})


@pytest.mark.parametrize("family", ["m2m_100", "mbart", "marian", "t5", "mt5"])
def test_the_loss_is_that_of_the_whole_model_over_the_pieces_of_the_target(tokenizer, family):
    model = model_for(tokenizer, family=family)
    bias = getattr(model.backbone.model, "final_logits_bias", None)
    if bias is not None:
        bias.normal_()
    batch = batch_of(model, tokenizer, examples(tokenizer)[:4])
    logits = model(batch.inputs, batch.conditions).logits
    labels = torch.full(batch.inputs["decoder_input_ids"].shape, -100)
    for i, example in enumerate(examples(tokenizer)[:4]):
        ends = [*example.row["target"], tokenizer.eos_id]
        labels[i, : len(ends)] = torch.tensor(
            ends
        )  # the prefix is one token: what stands at 0 predicts the first piece
    for smoothing in (0.0, 0.1):
        model.tasks["mt"].label_smoothing = smoothing
        expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=smoothing)
        torch.testing.assert_close(model.losses(batch)["mt"], expected, rtol=1e-5, atol=1e-4)
    counts = [count for _, count in model.predict(batch)]
    assert counts == (labels >= 0).sum(-1).tolist()
    assert batch.by_task["mt"].count == sum(counts)


def test_losses_do_not_depend_on_the_rows_beside(tokenizer):
    model, chosen = model_for(tokenizer), examples(tokenizer)
    together = model.predict(batch_of(model, tokenizer, chosen))
    alone = [model.predict(batch_of(model, tokenizer, [example]))[0] for example in chosen]
    torch.testing.assert_close(torch.tensor(together), torch.tensor(alone), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", ["hyper-adapters", *nightly("lang-adapters", "pair-adapters", "dense")])
@pytest.mark.parametrize("beams", [*nightly(1), 5])
def test_32_directions_in_one_batch_say_what_each_says_alone(tokenizer, method, beams):
    model, decoding = model_for(tokenizer, method), Decoding(beams=beams, max_extra=8, max_ratio=1.0)
    chosen = [asked(example) for example in examples(tokenizer)]
    together = model.generate_ids(batch_of(model, tokenizer, chosen), eos_id=tokenizer.eos_id, decoding=decoding)
    assert len({tuple(ids) for ids in together}) > 8, "they differ"
    for example, expected in zip(chosen, together, strict=True):
        assert model.generate_ids(
            batch_of(model, tokenizer, [example]), eos_id=tokenizer.eos_id, decoding=decoding
        ) == [expected]


@pytest.mark.parametrize("method", ["hyper-adapters", "lang-adapters", "pair-adapters", "dense"])
def test_what_is_written_is_what_training_would_find_likeliest(tokenizer, method):
    """A search that applied adapters otherwise than training does would write worse text, alone as in a batch."""
    model, decoding = model_for(tokenizer, method), Decoding(beams=1, max_extra=8, max_ratio=1.0)
    chosen = [asked(example) for example in examples(tokenizer)]
    written = model.generate_ids(batch_of(model, tokenizer, chosen), eos_id=tokenizer.eos_id, decoding=decoding)
    learnt = [e._replace(row={**e.row, "target": ids, "length": 64}) for e, ids in zip(chosen, written, strict=True)]
    batch = batch_of(model, tokenizer, learnt)
    likeliest = model(batch.inputs, batch.conditions).logits.argmax(-1).tolist()
    assert sum(map(len, written)) > 100
    for ids, found in zip(written, likeliest, strict=True):
        assert found[: len(ids)] == ids


@pytest.mark.parametrize("pivot", [None, "en"])
def test_many_directions_translated_together_say_what_each_says_alone_also_through_a_third_language(tokenizer, pivot):
    predictor = Predictor(
        model_for(tokenizer), tokenizer=tokenizer, decoding=Decoding(beams=2, max_extra=8, max_ratio=1.0)
    )
    records = {
        Condition.parse(direction): [Bitext(sentence(10 * n + i), "") for i in range(n % 3 + 1)]
        for n, direction in enumerate(["mt/de/sw", "mt/de/fr", "mt/en/tr", "mt/sw/en", "mt/tr/de"])
    }
    together = translate_all(predictor, records, pivot=pivot)
    assert together == {c: list(translate(predictor, some, c, pivot=pivot)) for c, some in records.items()}
    assert len({text for texts in together.values() for text in texts}) > 5


@pytest.mark.parametrize("method", ["hyper-adapters", *nightly("lang-adapters")])
def test_weights_cached_and_evicted_in_between_change_nothing(tokenizer, method):
    """64 rows of 32 directions, in batches of 7, with room for two conditions."""
    model, decoding = model_for(tokenizer, method), Decoding(beams=5, max_extra=4, max_ratio=1.0)
    chosen = [asked(example) for example in examples(tokenizer, DIRECTIONS + DIRECTIONS[::-1])]
    together = model.generate_ids(batch_of(model, tokenizer, chosen), eos_id=tokenizer.eos_id, decoding=decoding)
    room = model.method.weights(DIRECTIONS[:2]).num_bytes()
    cache, texts = WeightCache(model, max_bytes=room), []
    for start in range(0, len(chosen), 7):
        batch = batch_of(model, tokenizer, chosen[start : start + 7])
        weights = cache.rows(batch.conditions)
        assert len(cache) <= 2
        texts += model.generate_ids(batch, eos_id=tokenizer.eos_id, decoding=decoding, weights=weights)
    assert texts == together


def add_one(parameter):
    with torch.no_grad():
        parameter.add_(1.0)


def learn(parameter):
    """Fused optimizers change tensors without counting it in them."""
    parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW([parameter], lr=1.0, fused=True).step()


@pytest.mark.parametrize("change", [add_one, learn])
def test_the_cache_makes_every_condition_once_and_forgets_when_weights_have_learnt(tokenizer, change):
    model = model_for(tokenizer)
    cache, made = WeightCache(model), []
    model.method.register_forward_hook(lambda _, ids, __: made.append(len(ids[0].task_K)))
    one, other, third = (Condition.parse(direction) for direction in DIRECTIONS[:3])
    first = cache.rows([one, other, one])
    again = cache.rows([other, one, one, third])
    assert made == [2, 1]
    for name, tensor in first.blocks[0].tensors.items():
        assert torch.equal(tensor[[1, 0, 2]], again.blocks[0].tensors[name][:3]), name
    change(next(model.method.parameters()))
    changed = cache.rows([one, other, one])
    assert made == [2, 1, 2]
    expected = model.weights([one, other, one])
    for name, tensor in changed.blocks[0].tensors.items():
        torch.testing.assert_close(tensor, expected.blocks[0].tensors[name])
        assert not torch.equal(tensor, first.blocks[0].tensors[name])


def test_a_direction_changes_what_is_said(tokenizer):
    model, decoding = model_for(tokenizer), Decoding(beams=2, max_extra=8)
    (example, *_) = (asked(e) for e in examples(tokenizer))
    texts = [
        model.generate_ids(
            batch_of(model, tokenizer, [example._replace(condition=Condition("mt", *pair))]),
            eos_id=tokenizer.eos_id,
            decoding=decoding,
        )[0]
        for pair in (("en", "de"), ("en", "sw"), ("tr", "de"))
    ]
    assert len({tuple(ids) for ids in texts}) == 3


def test_weights_are_made_once_for_a_whole_search(tokenizer, monkeypatch):
    model, made = model_for(tokenizer), []
    forward = type(model.method).forward

    def counted(method, ids):
        made.append(ids)
        return forward(method, ids)

    monkeypatch.setattr(type(model.method), "forward", counted)
    batch = batch_of(model, tokenizer, [asked(example) for example in examples(tokenizer)])
    model.generate_ids(batch, eos_id=tokenizer.eos_id, decoding=Decoding())
    assert len(made) == 1


def test_a_text_ends_at_its_own_limit_whatever_stands_beside_it(tokenizer):
    model, decoding = model_for(tokenizer), Decoding(beams=3, max_ratio=1.0, max_extra=2)
    with torch.no_grad():
        model.backbone.model.lm_head.weight[tokenizer.eos_id] = -9.0 * model.backbone.model.lm_head.weight.mean(0)
    chosen = [asked(example) for example in examples(tokenizer)]
    for example, ids in zip(
        chosen,
        model.generate_ids(batch_of(model, tokenizer, chosen), eos_id=tokenizer.eos_id, decoding=decoding),
        strict=True,
    ):
        assert len(ids) <= len(example.row["source"]) + 2 + 2


@pytest.mark.parametrize(
    ("language_tokens", "before", "prefix"),
    [("target", ["de"], ["de"]), ("both", ["en"], [2, "de"]), ("source", ["de"], [2]), ("none", [], [2])],
)
def test_language_tokens_stand_where_the_backbone_is_used_to_them(tokenizer, language_tokens, before, prefix):
    task = build_task("mt", (), width=8)
    assert isinstance(task, Translation)
    task.language_tokens = language_tokens
    example = examples(tokenizer, ["mt/en/de"])[0]
    rows = task.collate([example], tokenizer=tokenizer, max_length=100)
    ids = {language: tokenizer.language_id(language) for language in LANGUAGES}
    source, target = list(example.row["source"]), list(example.row["target"])
    assert list(rows.sequences[0].ids) == [*(ids[name] for name in before), *source, tokenizer.eos_id]
    assert list(rows.decoder[0].ids) == [*(ids.get(name, name) for name in prefix), *target]
    assert rows.targets["labels_BL"].tolist() == [[*target, tokenizer.eos_id]]


def test_a_language_without_a_token_is_said(tokenizer):
    task = build_task("mt", (), width=8)
    with pytest.raises(ConditionError, match="no token for the language 'ja'"):
        task.collate(examples(tokenizer, ["mt/en/ja"]), tokenizer=tokenizer, max_length=100)


def test_answers_come_in_the_order_of_the_questions(tokenizer):
    model = model_for(tokenizer)
    predictor = Predictor(model, tokenizer=tokenizer, decoding=Decoding(beams=2, max_extra=5))
    records = [Bitext(sentence(i), "") for i in range(12)]
    condition = Condition("mt", "sw", "fi")
    together = list(predictor.predict(records, condition))
    assert together == [next(predictor.predict([record], condition)) for record in records]
    assert len(set(together)) > 6


def paragraph(count: int) -> str:
    return " ".join(f"{sentence(700 + i).capitalize()}." for i in range(count))


def test_a_source_that_is_too_long_is_translated_sentence_by_sentence(tokenizer):
    """Nothing behind the maximum is lost, the others of the batch do not change, and the number is known."""
    decoding, condition = Decoding(beams=2, max_extra=5), Condition("mt", "sw", "fi")
    predictor = Predictor(model_for(tokenizer), tokenizer=tokenizer, max_length=80, decoding=decoding)
    short, long = [Bitext(sentence(i), "") for i in range(3)], Bitext(paragraph(12), "")
    assert len(tokenizer.text([long.source])[0]) > 120
    alone = list(predictor.predict(short, condition))
    assert predictor.pop_length_warnings() == {}
    done: list[int] = []
    translated = predictor.translate([(condition, r) for r in (*short, long)], progress=done.append)
    assert sum(done) == 4
    assert translated[:3] == alone
    sentences = split_sentences(long.source)
    assert len(sentences) == 12
    expected = join_sentences(list(predictor.predict([Bitext(text, "") for text in sentences], condition)))
    assert translated[3] == expected
    told = "1 input was longer than 80 tokens and split (mt/sw/fi: 1)."
    assert predictor.pop_length_warnings() == {"split": told}
    assert list(predictor.predict([*short, long], condition)) == translated
    assert predictor.pop_length_warnings() == {"split": told}


@pytest.mark.parametrize("source", [paragraph(12), "kalo" * 200, "kalo mi " * 200, "kalo, mi ne " * 100 + "."])
def test_parts_of_a_source_hold_all_its_tokens_and_none_is_cut(tokenizer, source):
    task = build_task("mt", (), width=8)
    parts = task.split(Bitext(source, "x"), tokenizer=tokenizer, max_length=20)
    texts = [part.source for part in parts if isinstance(part, Bitext)]
    assert all(0 < len(ids) <= 18 for ids in tokenizer.text(texts))
    assert "".join("".join(texts).split()) == "".join(source.split())


def test_what_perplexity_does_not_see_is_counted(tokenizer):
    predictor = Predictor(model_for(tokenizer), tokenizer=tokenizer, max_length=40)
    pairs = [Bitext("ka lo", "mi"), Bitext("ka lo", paragraph(12)), Bitext(paragraph(12), "mi")]
    assert len(list(predictor.predict(pairs, Condition("mt", "sw", "fi"), losses=True))) == 3
    assert predictor.pop_length_warnings() == {"cut": "2 inputs were longer than 40 tokens and cut (mt/sw/fi: 2)."}


@pytest.mark.parametrize("pivot", [None, "en"])
def test_a_direction_whose_weights_are_nan_loses_only_its_own_texts(tokenizer, pivot):
    predictor = Predictor(model_for(tokenizer), tokenizer=tokenizer, decoding=Decoding(beams=3, max_extra=5))
    good = [
        (Condition.parse(direction), Bitext(sentence(i), ""))
        for i, direction in enumerate(["mt/sw/fi", "mt/de/tr"] * 4)
    ]
    alone = list(predictor.predict_mixed(good))
    row = list(predictor.model.method.languages).index("yo")
    for table in predictor.model.method.growing("language"):
        for parameter in table.parameters():
            parameter.data[row] = torch.nan
    bad = Condition.parse("mt/sw/yo")
    made = list(predictor.predict_mixed([*good[:3], (bad, Bitext(sentence(3), "")), *good[3:]], strict=False))
    assert isinstance(error := made.pop(3), PredictionError)
    assert str(error).startswith("mt/sw/yo: the output of the model is not finite")
    assert made == alone
    with pytest.raises(PredictionError, match="mt/sw/yo"):
        predictor.translate([(bad, Bitext(sentence(3), ""))])
    texts = translate(predictor, [Bitext(paragraph(2), "")], bad, pivot=pivot, sentences=True, strict=False)
    assert [type(text) for text in texts] == [PredictionError]


def test_a_translation_takes_one_line():
    item = StreamItem(1, Bitext("a", ""), "")
    assert Translation.record_kind().write(item, "a\nb\r\nc\u2028d", "text") == "a b c\u2028d\n"
