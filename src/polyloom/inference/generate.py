"""Continue prompts with a decoder, each under a condition of its own."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from polyloom.conditions import Condition
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import BackboneError, PolyloomError
from polyloom.inference.predictor import TOKENS, Predictor, group_by_length

NEW_TOKENS = 128


def continue_prompts(
    predictor: Predictor,
    prompts: Sequence[tuple[Condition, Sequence[int]]],
    *,
    seed: int | None = None,
    until: Sequence[str] = (),
    **options: Any,
) -> list[list[int]]:
    """Generate what follows prompts, without the token that ends it.

    Rows are padded on the left, where no token sees the padding, so what follows a prompt does not depend on the others
    of its batch, unless it is sampled.

    Args:
        predictor: A model with its tokenizer.
        prompts: Conditions and tokens, at least one for each prompt.
        seed: Seed of samples. Default: none, PyTorch's state is used.
        until: Texts that end a row. They are part of the result, perhaps with a few more letters, as one token may hold
            both.
        **options: Settings of Transformers' `generate`. Defaults here: greedy search, 128 new tokens.
    """
    backbone, tokenizer = predictor.model.backbone, predictor.tokenizer
    if backbone.family.auto_class != "AutoModelForCausalLM":
        raise BackboneError(f"generate: {backbone.shape.family} is no decoder. `translate` is for encoder-decoders.")
    options = {"do_sample": False, "num_beams": 1, "max_new_tokens": NEW_TOKENS, **options}
    for condition, ids in prompts:
        room = predictor.max_length - options["max_new_tokens"]
        if not 0 < len(ids) <= room:
            raise PolyloomError(
                f"{condition}: a prompt of {len(ids)} tokens; between 1 and {room} leave room for "
                f"{options['max_new_tokens']} new ones (max_new_tokens)."
            )
    if seed is not None:
        torch.manual_seed(seed)

    # A text ends with a token of the tokenizer, or one that the model was published with.
    published = backbone.model.generation_config.eos_token_id
    candidates = [tokenizer.eos_id, tokenizer.text_end, *(published if isinstance(published, list) else [published])]
    ends = [token for token in dict.fromkeys(candidates) if token is not None]
    generated: dict[int, list[int]] = {}
    lengths = [len(ids) + options["max_new_tokens"] for _, ids in prompts]
    for group in group_by_length(lengths, tokens=TOKENS):
        inputs = _pad_left([prompts[place][1] for place in group], tokenizer.pad_id)
        width = inputs["input_ids"].shape[1]
        conditions = [prompts[place][0] for place in group]
        ids_BT = predictor.model.generate(
            {name: tensor.to(backbone.model.device) for name, tensor in inputs.items()},
            conditions,
            weights=predictor.cache.rows(conditions),
            pad_token_id=tokenizer.pad_id,
            eos_token_id=ends,
            **_stop_at(until, begin=width, tokenizer=tokenizer),
            **options,
        )[:, width:]
        for place, ids in zip(group, ids_BT.tolist(), strict=True):
            generated[place] = list(takewhile(lambda token: token not in ends, ids))
    return [generated[place] for place in range(len(prompts))]


def _pad_left(prompts: Sequence[Sequence[int]], pad_id: int) -> dict[str, Tensor]:
    """Lay out prompts as rows that end together, with their mask."""
    ids_BT = torch.full((len(prompts), max(map(len, prompts))), pad_id)
    mask_BT = torch.zeros_like(ids_BT)
    for row, ids in enumerate(prompts):
        ids_BT[row, -len(ids) :] = torch.tensor(ids)
        mask_BT[row, -len(ids) :] = 1
    return {"input_ids": ids_BT, "attention_mask": mask_BT}


def _stop_at(until: Sequence[str], *, begin: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the option of Transformers' `generate` that ends rows at texts."""

    def has_ended(ids_BT: Tensor, _scores: Any, **_: Any) -> Tensor:
        # The rows are decoded again at every step, because a text may begin and end within tokens.
        texts = [tokenizer.decode(ids) for ids in ids_BT[:, begin:].tolist()]
        return torch.tensor([any(end in text for end in until) for text in texts], device=ids_BT.device)

    return {"stopping_criteria": [has_ended]} if until else {}
