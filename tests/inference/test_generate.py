"""A decoder continues prompts: a row in a batch writes what it writes alone, token for token."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from polyloom.conditions import Condition
from polyloom.errors import PolyloomError
from polyloom.inference.generate import continue_prompts
from polyloom.inference.predictor import Predictor
from tests.contracts.tiny import LANGUAGES, VOCAB
from tests.tasks.test_lm import BEGIN, DECODERS, END, model_of

TOKENIZER: Any = SimpleNamespace(pad_id=0, eos_id=END, text_begin=BEGIN, text_end=END)


def prompts(count: int) -> list[tuple[Condition, list[int]]]:
    torch.manual_seed(5)
    lengths = torch.randint(1, 12, (count,)).tolist()
    return [
        (Condition("lm", LANGUAGES[i % len(LANGUAGES)]), [BEGIN, *torch.randint(4, VOCAB, (length,)).tolist()])
        for i, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("method", ["hyperx", "lang-adapters"])
def test_a_row_in_a_batch_writes_what_it_writes_alone(family, method):
    predictor, asked = Predictor(model_of(family, method), tokenizer=TOKENIZER), prompts(14)
    together = continue_prompts(predictor, asked, max_new_tokens=12)
    alone = [continue_prompts(predictor, [one], max_new_tokens=12)[0] for one in asked]
    assert together == alone
    other = [(Condition("lm", LANGUAGES[-1]), ids) for _, ids in asked]
    assert continue_prompts(predictor, other, max_new_tokens=12) != together, "the condition matters"


def test_beams_of_a_row_share_its_weights():
    predictor, asked = Predictor(model_of("llama"), tokenizer=TOKENIZER), prompts(6)
    together = continue_prompts(predictor, asked, max_new_tokens=6, num_beams=3)
    assert together == [continue_prompts(predictor, [one], max_new_tokens=6, num_beams=3)[0] for one in asked]


def test_it_is_what_transformers_writes_without_adapters():
    model = model_of("llama")
    for parameter in model.method.parameters():
        parameter.zero_()
    (asked,) = prompts(1)
    ids = torch.tensor([asked[1]])
    expected = model.backbone.model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=9, pad_token_id=0,
        eos_token_id=END,
    )[0, ids.shape[1] :].tolist()  # fmt: skip
    expected = expected[: expected.index(END)] if END in expected else expected
    assert continue_prompts(Predictor(model, tokenizer=TOKENIZER), [asked], max_new_tokens=9) == [expected]


@pytest.mark.parametrize("length", [0, 39])
def test_a_prompt_without_room_is_refused(length):
    predictor = Predictor(model_of("llama"), tokenizer=TOKENIZER)
    with pytest.raises(PolyloomError, match=rf"lm/en: a prompt of {length} tokens; between 1 and 38 leave room for 2"):
        continue_prompts(predictor, [(Condition("lm", "en"), [5] * length)], max_new_tokens=2)


def test_an_encoder_cannot_continue():
    with pytest.raises(PolyloomError, match="no decoder"):
        continue_prompts(Predictor(model_of("bert"), tokenizer=TOKENIZER), [(Condition("lm", "en"), [5])])


def test_samples_depend_on_their_seed():
    predictor, asked = Predictor(model_of("llama"), tokenizer=TOKENIZER), prompts(6)
    once, again, other = (
        continue_prompts(predictor, asked, max_new_tokens=9, do_sample=True, seed=seed) for seed in (1, 1, 2)
    )
    assert once == again != other


def test_nothing_is_generated_behind_a_text_that_ends_a_row():
    spelling: Any = SimpleNamespace(**vars(TOKENIZER), decode=lambda ids: "".join(map(chr, ids)))
    predictor, asked = Predictor(model_of("llama"), tokenizer=spelling), prompts(6)
    whole = [spelling.decode(ids) for ids in continue_prompts(predictor, asked, max_new_tokens=12)]
    row = max(range(6), key=lambda i: len(set(whole[i])))
    end = whole[row][2:5]
    stop = whole[row].index(end) + 3
    (alone,) = continue_prompts(predictor, [asked[row]], max_new_tokens=12, until=[end])
    assert spelling.decode(alone) == whole[row][:stop]
    ended = continue_prompts(predictor, asked, max_new_tokens=12, until=["never", end])
    assert [spelling.decode(ids).split(end)[0] for ids in ended] == [text.split(end)[0] for text in whole]
    said = spelling.decode(asked[row][1])
    assert said not in whole[row]
    (further,) = continue_prompts(predictor, [asked[row]], max_new_tokens=12, until=[said])
    assert spelling.decode(further) == whole[row], "what a prompt contains does not end a row"
