"""New tokens for letters that a tokenizer does not know."""

import re
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, models, trainers

from polyloom.data.tokenization.tokenizer import Tokenizer, load_hf_tokenizer


def new_tokens(tokenizer: Tokenizer, texts: Sequence[str], count: int) -> list[str]:
    """Return new tokens of unknown letters: the letters, frequent ones first, then frequent sequences of them."""
    letters = sorted({letter for text in texts for letter in text if not letter.isspace()})
    unknown = [letter for letter, ids in zip(letters, tokenizer.text(letters), strict=True) if tokenizer.unk_id in ids]
    if not unknown:
        return []
    stretches = re.compile("[" + "".join(map(re.escape, unknown)) + "]+")
    # BPE on the unknown letters alone. Ids are in the order in which tokens were learned: letters, then merges.
    bpe = tokenizers.Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=count, limit_alphabet=count, show_progress=False)
    bpe.train_from_iterator((stretch for text in texts for stretch in stretches.findall(text)), trainer)
    vocabulary = bpe.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def extend_tokenizer(name: str, added: Sequence[str], into: Path) -> int:
    """Write a tokenizer with more tokens, which splits known text as before, and return its vocabulary size."""
    tokenizer = load_hf_tokenizer(name)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added])
    tokenizer.save_pretrained(into)
    return len(tokenizer)
