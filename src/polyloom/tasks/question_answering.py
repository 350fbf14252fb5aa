"""Question answering: the span of a context that answers a question."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from polyloom.data.records import AnswerPrediction, Kind, Question, Record
from polyloom.data.tokenization.tokenizer import Located, Tokenizer
from polyloom.metrics.answers import answer_statistics, normalized_answer
from polyloom.metrics.score import ANSWER_EXACT, ANSWER_F1, Array, Metric
from polyloom.ranges import Count
from polyloom.tasks.base import (
    Columns,
    EncodedExample,
    Example,
    HeadInputs,
    Task,
    TaskBatch,
    TaskConfig,
    Tokens,
    choice_loss,
    linear_classifier,
)


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringConfig(TaskConfig):
    """Settings of question answering."""

    stride: Count = 128
    """Number of tokens that neighbouring windows of a long context share, at most half a window."""
    max_tokens: Count = 30
    """Maximum length of a predicted answer in tokens, 30 as in BERT's evaluation."""


class AnswerSpan(NamedTuple):
    """The prediction for a question: the characters of the context from ``start`` up to but not including ``end``."""

    start: int
    end: int

    def of(self, record: Question) -> str:
        """Return the answer, a slice of the context."""
        return record.context[self.start : self.end]


class QuestionAnswering(Task):
    """Question answering: the span of a context that answers a question.

    A row is the question and a window of the context. One logit per token says whether the answer begins there, another
    whether it ends there. In training, the target of a window without the whole answer is the first token, as in BERT;
    such a window is never predicted to have no answer.
    """

    Config: ClassVar[type[TaskConfig]] = QuestionAnsweringConfig
    config: QuestionAnsweringConfig
    name = "qa"
    kind: ClassVar[Kind] = "question"
    columns: ClassVar[Columns] = {
        "question": "ints", "context": "ints", "begins": "ints", "ends": "ints", "first": "int", "last": "int",
    }  # fmt: skip
    metrics: ClassVar[tuple[Metric, ...]] = (ANSWER_F1, ANSWER_EXACT)
    summary = "question answering (XQuAD, SQuAD): F1, exact match"
    needs_labels = False

    def __init__(self, config: QuestionAnsweringConfig, *, width: int) -> None:
        super().__init__(config, width=width)
        self.classifier = linear_classifier(width, 2)

    def configure(self, config: TaskConfig, *, backbone: Any, pretrained: bool, tokenizer: Tokenizer) -> None:  # noqa: ARG002
        """Take the recipe's settings, which may differ from those of a run that is continued."""
        assert isinstance(config, QuestionAnsweringConfig)
        self.config = config

    @classmethod
    def encode(
        cls, records: Sequence[Record], tokenizer: Tokenizer, index: dict[str, int] | None = None
    ) -> Iterator[EncodedExample]:
        """Encode question and context, with the characters of each token, and the tokens of the first gold answer."""
        kept = [record for record in records if isinstance(record, Question)]
        questions = tokenizer.text([record.question for record in kept])
        contexts = tokenizer.located([record.context for record in kept])
        special = tokenizer.num_special(pair=True)
        for record, question, context in zip(kept, questions, contexts, strict=True):
            row: dict[str, Any] = {"question": question, "context": context.ids}
            row |= {"begins": context.begins, "ends": context.ends}
            row["length"] = len(question) + len(context.ids) + special
            if index is not None:
                row["first"], row["last"] = _tokens_of(record, context)
            yield row

    def is_cut(self, row: EncodedExample, *, tokenizer: Tokenizer, max_length: int) -> bool:
        """Return whether the question takes more than half a row and is cut; long contexts take several rows."""
        return len(row["question"]) > (max_length - tokenizer.num_special(pair=True)) // 2

    def collate(self, examples: Sequence[Example], *, tokenizer: Tokenizer, max_length: int) -> TaskBatch:
        """Lay out the question with each window of the context."""
        room = max_length - tokenizer.num_special(pair=True)
        sequences: list[Tokens] = []
        owners: list[int] = []
        places: list[tuple[int, int, int, int]] = []  # row, first position of the window, its first and last token
        targets_B: list[tuple[int, int]] = []
        for number, (_, row, _) in enumerate(examples):
            question = [int(token) for token in row["question"][: room // 2]]
            offset = tokenizer.num_before_second(len(question))
            for begin, end in _windows(len(row["context"]), room - len(question), self.config.stride):
                places.append((len(sequences), offset, begin, end))
                window = [int(token) for token in row["context"][begin:end]]
                sequences.append(Tokens(*tokenizer.pair(question, window)))
                owners.append(number)
                if "first" in row:
                    first, last = int(row["first"]), int(row["last"])
                    inside = begin <= first and last < end
                    targets_B.append((first - begin + offset, last - begin + offset) if inside else (0, 0))
        # The characters of each token of the context, by which `decode` finds the answer. Of all other tokens -1: these
        # cannot be part of an answer.
        begin_BT = torch.full((len(sequences), max(len(sequence.ids) for sequence in sequences)), -1)
        end_BT = begin_BT.clone()
        for (place, offset, begin, end), owner in zip(places, owners, strict=True):
            row, columns = examples[owner].row, slice(offset, offset + end - begin)
            begin_BT[place, columns] = torch.tensor([int(i) for i in row["begins"][begin:end]], dtype=torch.long)
            end_BT[place, columns] = torch.tensor([int(i) for i in row["ends"][begin:end]], dtype=torch.long)
        targets = {"begin_BT": begin_BT, "end_BT": end_BT}
        if targets_B:
            targets["targets_B2"] = torch.tensor(targets_B)
        return TaskBatch(sequences, owners, targets, len(sequences))

    def loss(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Sum the mean of both cross entropies, of the first and of the last token, over windows."""
        logits_2BT = self._logits(states, rows)
        mask_BT = rows.targets["begin_BT"] >= 0
        mask_BT[:, 0] = True  # which says that the answer is not in this window
        losses = [
            choice_loss(logits_BT, mask_BT, rows.targets["targets_B2"][:, side], smoothing=self.label_smoothing)
            for side, logits_BT in enumerate(logits_2BT)
        ]
        return (losses[0] + losses[1]) / 2

    def decode(self, states: HeadInputs, rows: TaskBatch) -> list[Any]:
        """Predict the best span over all windows of each context; an empty one if no token can be an answer."""
        scores_BTL, spans = self._scores(states, rows), []
        for example_rows in _rows_of_examples(rows):
            windows_BTL = scores_BTL[example_rows]
            row, first, more = torch.unravel_index(windows_BTL.argmax(), windows_BTL.shape)
            if windows_BTL[row, first, more].isfinite():
                begin, end = (rows.targets[name][example_rows][row] for name in ("begin_BT", "end_BT"))
                spans.append(AnswerSpan(int(begin[first]), int(end[first + more])))
            else:
                spans.append(AnswerSpan(0, 0))
        return spans

    def confidences(self, states: HeadInputs, rows: TaskBatch, predictions: Sequence[Any]) -> list[Any]:  # noqa: ARG002
        """Return the probability of each predicted span among all that could be predicted."""
        scores_BTL = self._scores(states, rows)
        # If no token can be an answer, all scores are minus infinity, and their softmax is NaN.
        best = [scores_BTL[windows].flatten().softmax(0).amax() for windows in _rows_of_examples(rows)]
        return [float(probability) if probability.isfinite() else None for probability in best]

    def _scores(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Score the spans that begin at each token, by length: ``[B, T, L]``, minus infinity where there is none.

        As in BERT, the score of a span is the logit of its first token plus that of its last (Devlin et al. 2019,
        section 4.2). Windows over the logits of last tokens, one for each first token, give all spans of up to
        `max_tokens` tokens at once; the padding stands for spans that end behind the row.
        """
        invalid_BT = rows.targets["begin_BT"] < 0
        first_BT, last_BT = (
            logits.float().masked_fill(invalid_BT, -torch.inf) for logits in self._logits(states, rows)
        )
        padding = torch.full((len(last_BT), self.config.max_tokens - 1), -torch.inf, device=last_BT.device)
        last_BTL = torch.cat([last_BT, padding], dim=1).unfold(1, self.config.max_tokens, 1)
        scores_BTL: Tensor = first_BT[:, :, None] + last_BTL
        return scores_BTL

    def _logits(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Compute the logits of the first and of the last token: ``[2, B, T]``."""
        hidden_BTD = states.hidden_BTD[:, : rows.targets["begin_BT"].shape[1]]  # rows of other tasks may be longer
        logits_BT2: Tensor = self.classifier(hidden_BTD)
        return logits_BT2.movedim(-1, 0)

    def statistics(self, records: Sequence[Any], predictions: Sequence[Any]) -> Array:
        """Count exact matches, the F1 of words and questions, as the official evaluation of SQuAD 1.1 does."""
        gold = [[answer.text for answer in record.answers] for record in records]
        return answer_statistics(gold, [p.of(record) for record, p in zip(records, predictions, strict=True)])

    @classmethod
    def mistakes(cls, record: Any, prediction: Any) -> list[int]:
        """Compare with all gold answers, as an exact match does."""
        answer = normalized_answer(prediction.of(record))
        return [] if answer in [normalized_answer(gold.text) for gold in record.answers] else [0]

    @classmethod
    def prediction(cls, record: Any, decoded: Any, score: Any) -> AnswerPrediction:
        """Return the answer with its position in the context."""
        return AnswerPrediction(decoded.of(record), decoded.start, decoded.end, score)


def _tokens_of(record: Question, context: Located) -> tuple[int, int]:
    """Find the first and the last token of the first gold answer; -1 if none of its characters is in a token."""
    text, start = record.answers[0]
    end = start + len(text)
    spans = enumerate(zip(context.begins, context.ends, strict=True))
    inside = [token for token, (token_begin, token_end) in spans if token_begin < end and start < token_end]
    return (inside[0], inside[-1]) if inside else (-1, -1)


def _windows(count: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Cover tokens with windows ``[begin, end)`` of at most `room` tokens, which share `stride` tokens or a half."""
    step = room - min(stride, room // 2)
    begins = range(0, max(count - room, 0) + step, step)
    return [(begin, min(begin + room, count)) for begin in begins]


def _rows_of_examples(rows: TaskBatch) -> Iterator[slice]:
    """Yield the rows of each example."""
    begin = 0
    for count in Counter(rows.examples).values():
        yield slice(begin, begin + count)
        begin += count
