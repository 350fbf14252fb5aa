"""Translation by an encoder and a decoder."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from polyloom.conditions import Condition
from polyloom.data.catalog import Corpus
from polyloom.data.records import Bitext, Kind, Record
from polyloom.data.tokenization.sentences import split_to_fit
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import ConditionError, PolyloomError, suggest
from polyloom.metrics.bleu import bleu_statistics, chrf_statistics
from polyloom.metrics.score import BLEU, CHRF, Array, Metric
from polyloom.tasks.base import (
    Columns,
    EncodedExample,
    Example,
    Head,
    HeadInputs,
    Task,
    TaskBatch,
    TaskConfig,
    Tokens,
    vocabulary_losses,
)
from polyloom.tasks.padding import joined, padded, tokens_to_predict

LanguageTokens = Literal["target", "both", "source", "none"]
_USUAL: Mapping[str, LanguageTokens] = {"m2m_100": "both", "mbart": "both", "marian": "source"}  # of pretrained models


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(TaskConfig):
    """Settings of translation."""

    language_tokens: LanguageTokens | None = None
    """Which language tokens the model gets. ``target``: the target's, before the source and as the decoder's first
    (Hyper-Adapters; models from scratch). ``both``: each side has its own, the source's where the tokenizer has it, the
    decoder's behind its start token (M2M100, NLLB, mBART). ``source``: the target's before the source only (Marian).
    ``none`` (mT5). Default: those that the backbone was pretrained with; ``target`` for a backbone from scratch."""
    language_token_aliases: dict[str, str] = field(default_factory=dict)
    """Languages that use the token of another one, ``{glg: por}``. `polyloom add` writes it for languages that it
    adds."""


class Translation(Task):
    """Translation of a text into another language."""

    Config: ClassVar[type[TaskConfig]] = TranslationConfig
    config: TranslationConfig
    name = "mt"
    kind: ClassVar[Kind] = "bitext"
    columns: ClassVar[Columns] = {"source": "ints", "target": "ints"}
    metrics: ClassVar[tuple[Metric, ...]] = (BLEU, CHRF)
    summary = "translation: BLEU, chrF"
    needs_labels = False
    generates = True
    bilingual = True
    uses_lm_head = True
    addable = False
    export_head: ClassVar[Head | None] = "language-modelling"
    start_id: int | None = 2
    """The decoder's start token. With language tokens ``both`` there may be none: the language begins (mBART-25)."""
    pretrained = False
    """Whether the backbone was pretrained, so that its language tokens mean something."""

    def __init__(self, config: TranslationConfig, *, width: int) -> None:
        super().__init__(config, width=width)
        self.language_tokens: LanguageTokens = config.language_tokens or "target"
        self.language_token_aliases: Mapping[str, str] = config.language_token_aliases

    def settings(self) -> dict[str, Any]:
        """Return the language tokens as they were chosen for the backbone."""
        chosen = {"language_tokens": self.language_tokens}
        aliases = {"language_token_aliases": dict(self.language_token_aliases)}
        return {**super().settings(), **chosen, **(aliases if self.language_token_aliases else {})}

    def configure(self, config: TaskConfig, *, backbone: Any, pretrained: bool, tokenizer: Tokenizer) -> None:
        """Choose the language tokens and the start token that the backbone was trained with."""
        assert isinstance(config, TranslationConfig)
        self.pretrained, family = pretrained, backbone.model_type
        usual = default_language_tokens(family, tokenizer) if pretrained else "target"
        self.language_tokens, self.language_token_aliases = (
            config.language_tokens or usual,
            config.language_token_aliases,
        )
        start_id = getattr(backbone, "decoder_start_token_id", None)
        self.start_id = default_start_id(family, tokenizer, language_tokens=self.language_tokens, start_id=start_id)

    def add_language(self, name: str, *, like: str) -> None:
        """Use the language token of a similar language for a new one."""
        token = self.language_token_aliases.get(like, like)
        self.language_token_aliases = {**self.language_token_aliases, name: token}

    def updated(self, config: TaskConfig) -> TaskConfig:
        """Return the settings of a recipe, with the language tokens of languages that were added."""
        assert isinstance(config, TranslationConfig)
        return replace(config, language_token_aliases=dict(self.language_token_aliases))

    @classmethod
    def records(cls, corpus: Corpus, condition: Condition) -> Iterator[Record]:
        """Read pairs, turned so that they lead from the condition's source to its target."""
        cls.check_languages(condition)
        assert condition.target is not None
        return corpus.records(cls.kind, direction=(condition.source, condition.target))

    def check(self, condition: Condition, tokenizer: Tokenizer) -> None:
        """Raise unless there are two languages, with tokens where they are needed."""
        super().check(condition, tokenizer)
        self.tokens(condition, tokenizer)

    @classmethod
    def encode(
        cls,
        records: Sequence[Record],
        tokenizer: Tokenizer,
        index: dict[str, int] | None = None,  # noqa: ARG003 - no labels
    ) -> Iterator[EncodedExample]:
        """Encode both sides; an example is as long as the longer one, with a language token and an end."""
        pairs = [record for record in records if isinstance(record, Bitext)]
        sources, targets = tokenizer.text([p.source for p in pairs]), tokenizer.targets([p.target for p in pairs])
        for source, target in zip(sources, targets, strict=True):
            yield {"source": source, "target": target, "length": max(len(source), len(target)) + 2}

    def prompt(self, row: EncodedExample) -> EncodedExample:
        """Remove the target from an encoded example."""
        return {**row, "target": [], "length": len(row["source"]) + 2}

    def split(self, record: Record, *, tokenizer: Tokenizer, max_length: int) -> list[Record]:
        """Split a source into sentences, and sentences that are too long further."""
        assert isinstance(record, Bitext)

        def measure(texts: Sequence[str]) -> list[int]:
            return [len(ids) for ids in tokenizer.text(texts)]

        return [Bitext(part, "") for part in split_to_fit(record.source, measure, max_length - 2)]

    def collate(self, examples: Sequence[Example], *, tokenizer: Tokenizer, max_length: int) -> TaskBatch:
        """Lay out one row per pair; what is longer than `max_length` is cut."""
        room, end = max_length - 2, [end_of(tokenizer)]
        around = {c: self.tokens(c, tokenizer) for c in dict.fromkeys(example.condition for example in examples)}
        sequences, decoder, ends = [], [], []
        for condition, row, _ in examples:
            before, after, prefix = around[condition]
            sequences.append(Tokens(joined(before, row["source"][:room], after)))
            decoder.append(Tokens(joined(prefix, row["target"][:room])))
            ends.append(joined(row["target"][:room], end))
        labels_BL = padded(ends, -1)
        # All prefixes of a batch have the same length, because that depends on the settings of the task alone.
        # The last token of the prefix sees nothing of the target yet, and predicts its first token.
        targets = {"labels_BL": labels_BL, **tokens_to_predict(labels_BL, skipped=len(prefix) - 1)}
        return TaskBatch(sequences, range(len(ends)), targets, sum(map(len, ends)), decoder)

    def tokens(self, condition: Condition, tokenizer: Tokenizer) -> tuple[list[int], list[int], list[int]]:
        """Return the tokens before and after the source, and those that the decoder starts with."""
        after, start = [end_of(tokenizer)], [] if self.start_id is None else [self.start_id]
        if self.language_tokens == "none":
            return [], after, start
        target = self._token(condition.target, condition, tokenizer)
        if self.language_tokens == "source":
            return [target], after, start
        if self.language_tokens == "both":
            return *tokenizer.around(self._token(condition.source, condition, tokenizer)), [*start, target]
        return [target], after, [target]

    def _token(self, language: str | None, condition: Condition, tokenizer: Tokenizer) -> int:
        token = None if language is None else tokenizer.language_id(self.language_token_aliases.get(language, language))
        if token is None:
            raise ConditionError(
                f"condition {condition}: the tokenizer has no token for the language {language!r}. "
                f"{suggest(str(language), tokenizer.languages)} Call languages as a pretrained model does, train a "
                "vocabulary for these (polyloom data vocab), or do without tokens (tasks.mt.language_tokens: none)."
            )
        return token

    def loss(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Sum the cross entropy over tokens of the target, its end included."""
        return vocabulary_losses(states, rows, smoothing=self.label_smoothing).sum()

    def decode(self, states: HeadInputs, rows: TaskBatch) -> list[Any]:
        """Return for each pair the sum of its losses, not smoothed, and their number; text comes from `generate`."""
        losses_N, row_N = vocabulary_losses(states, rows), rows.targets["row_N"]
        sums_B = torch.zeros(len(rows.sequences), dtype=torch.float64, device=row_N.device)
        sums_B.index_add_(0, row_N, losses_N.double())
        counts = (rows.targets["labels_BL"] >= 0).sum(-1).tolist()
        return list(zip(sums_B.tolist(), counts, strict=True))

    def measure(self, records: Sequence[Any], predictions: Sequence[Any], language: str) -> Mapping[Metric, Array]:
        """Count matches of n-grams of words and of letters."""
        references = [record.target for record in records]
        return {
            BLEU: bleu_statistics(references, predictions, language=language),
            CHRF: chrf_statistics(references, predictions),
        }

    @classmethod
    def mistakes(cls, record: Any, prediction: Any) -> list[int]:
        """Compare with the reference."""
        return [] if prediction == record.target else [0]

    @classmethod
    def prediction(cls, record: Any, decoded: Any, score: Any) -> str:  # noqa: ARG003
        """Return the translation."""
        return str(decoded)


def default_language_tokens(family: str, tokenizer: Tokenizer) -> LanguageTokens:
    """Return the language tokens that a model was pretrained with; Marian's models for one pair have none."""
    usual = _USUAL.get(family, "none")
    return "none" if usual == "source" and not tokenizer.languages else usual


def default_start_id(
    family: str, tokenizer: Tokenizer, *, language_tokens: LanguageTokens, start_id: int | None
) -> int | None:
    """Return the token that a pretrained decoder starts with; none where that is the language.

    mBART's starts with the token that ends a text, whatever its configuration says: mBART-25's with the language,
    mBART-50's with ``</s>``.
    """
    if family == "mbart":
        return None if language_tokens == "both" and tokenizer.ends_in_language else end_of(tokenizer)
    if start_id is None and language_tokens != "target":
        raise PolyloomError(
            "backbone: its config.json has no decoder_start_token_id, with which a translation starts. Set it there."
        )
    return start_id


def end_of(tokenizer: Tokenizer) -> int:
    """Return the token that ends a text."""
    if tokenizer.eos_id is None:
        raise PolyloomError(
            "tokenizer: has no eos_token, which ends a translation. Set it in its tokenizer_config.json."
        )
    return tokenizer.eos_id
