"""Convert inputs (text, words, pairs) to records, and decoded values to typed predictions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from polyloom.conditions import Condition
from polyloom.data import records
from polyloom.data.records import Bitext, Choices, Pair, Question, Record, Tagged, Tree
from polyloom.errors import PolyloomError

if TYPE_CHECKING:
    from polyloom.tasks.base import Task  # imports torch, which a client of a server does without

Names = str | Condition
Offsets = tuple[tuple[int, int], ...]
Input = str | Sequence[str] | Record


@dataclass(frozen=True, repr=False)
class TagPrediction:
    """One label per word.

    Iterating yields ``(word, label)``.

    Attributes:
        words: The words. Of a text: those that the segmenter found.
        labels: The label of each word.
        scores: The probability of each label. Empty if the task gives none.
        offsets: Where each word begins and ends in the text. Empty if the input was words.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...]
    scores: tuple[float, ...]
    offsets: Offsets = ()

    def __len__(self) -> int:
        return len(self.words)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return zip(self.words, self.labels, strict=True)

    def __repr__(self) -> str:
        return f"TagPrediction({' '.join(f'{word}/{label}' for word, label in self)})"


@dataclass(frozen=True, repr=False)
class ParsePrediction:
    """A dependency tree.

    Iterating yields ``(word, head, relation)``.

    Attributes:
        words: The words. Of a text: those that the segmenter found.
        heads: The position of each word's head, counted from 1; 0 for the root.
        relations: The relation of each word to its head.
        scores: The probability of each head with its relation. Empty if the task gives none.
        offsets: Where each word begins and ends in the text. Empty if the input was words.
    """

    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    scores: tuple[float, ...]
    offsets: Offsets = ()

    def __len__(self) -> int:
        return len(self.words)

    def __iter__(self) -> Iterator[tuple[str, int, str]]:
        return zip(self.words, self.heads, self.relations, strict=True)

    def __repr__(self) -> str:
        return f"ParsePrediction({' '.join(f'{word}/{relation}→{head}' for word, head, relation in self)})"


@dataclass(frozen=True, repr=False)
class LabelPrediction:
    """One label for a text or a pair of texts.

    Attributes:
        label: The label. Of choices: the position of the chosen one, counted from 0.
        score: Its probability. ``None`` if the task gives none.
    """

    label: str
    score: float | None

    def __repr__(self) -> str:
        return f"LabelPrediction({self.label}{'' if self.score is None else f', {self.score:.2f}'})"


@dataclass(frozen=True, repr=False)
class AnswerPrediction:
    """The answer to a question: a slice of its context.

    Attributes:
        text: The answer.
        start: Position of its first character in the context.
        end: Position behind its last character.
        score: Its probability among all answers that could be predicted. ``None`` if there are none.
    """

    text: str
    start: int
    end: int
    score: float | None

    def __repr__(self) -> str:
        return f"AnswerPrediction({self.text!r}{'' if self.score is None else f', {self.score:.2f}'})"


_WORDS = "a text, or the words of a sentence as a tuple"
_EXPECTED = {
    "tags": _WORDS, "tree": _WORDS, "pair": "two texts as a tuple", "bitext": "a text", "labelled": "a text",
    "choices": "premise, question and choices as a tuple", "question": "question and context as a tuple",
}  # fmt: skip
Prediction = TagPrediction | ParsePrediction | LabelPrediction | AnswerPrediction | str


class PreparedInput(NamedTuple):
    """An input as a record; `offsets` are those of its words if it was a text."""

    record: Record
    offsets: Offsets = ()


def pair_with_conditions(inputs: Input | list[Input], conditions: Names | Sequence[Names]) -> list[tuple[Input, Names]]:
    """Pair each input with its condition; see `Run.predict`. One input becomes a list of one."""
    if not isinstance(inputs, list):
        if not isinstance(conditions, Names):
            raise PolyloomError("predict: one input needs one condition. Give a list of inputs for several.")
        return [(inputs, conditions)]
    named = [conditions] * len(inputs) if isinstance(conditions, Names) else list(conditions)
    if len(named) != len(inputs):
        raise PolyloomError(
            f"predict: {len(inputs)} inputs, but {len(named)} conditions. Give one condition for each input, or a "
            "single one for all. (The words of one sentence are given as a tuple, not as a list.)"
        )
    return list(zip(inputs, named, strict=True))


def prepare_input(value: Any, task: "Task", condition: Condition) -> PreparedInput:
    """Turn an input into a record of the task.

    Args:
        value: For tasks on words: a text, the words of a sentence, or a record. For pairs: two texts. For choices: the
            premise, the question and the choices. For questions: the question and its context. Otherwise: a text.
        task: The task.
        condition: What is predicted; its language decides how a text is split into words.
    """
    check_characters(value, condition)
    if task.kind in ("tags", "tree"):
        prepared = _prepare_words(value, condition)
    else:
        prepared = None if (record := _make_record(value, task.kind)) is None else PreparedInput(record)
    if prepared is None:
        if task.kind not in _EXPECTED:
            raise PolyloomError(f"{condition}: {task.name} has nothing to predict. run.evaluate() gives its scores.")
        raise PolyloomError(
            f"{condition}: expected {_EXPECTED[task.kind]}, or a record of its kind, not {show_value(value)}."
        )
    return prepared


def check_characters(value: Any, condition: Condition) -> None:
    """Raise an error if a text, or one of several, has half a surrogate pair."""
    texts = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
    try:
        for text in texts:
            if isinstance(text, str):
                text.encode()
    except UnicodeEncodeError:
        raise PolyloomError(
            f"{condition}: {show_value(value)} has half a surrogate pair, which is no character."
        ) from None


def _prepare_words(value: Any, condition: Condition) -> PreparedInput | None:
    if isinstance(value, str):
        from polyloom.data.tokenization.segmentation import segment  # noqa: PLC0415 - only for raw text

        words = segment(value, condition.languages[-1])
        return PreparedInput(Tagged(tuple(w.text for w in words), ()), tuple((w.start, w.end) for w in words))
    if isinstance(value, Tagged | Tree):
        return PreparedInput(Tagged(value.words, ()))
    if isinstance(value, list | tuple) and all(isinstance(word, str) and word.strip() for word in value):
        return PreparedInput(Tagged(tuple(value), ()))
    return None


def _make_record(value: Any, kind: str) -> Record | None:
    match kind, value:
        case ("pair", Pair()) | ("bitext", Bitext()) | ("choices", Choices()) | ("question", Question()):
            record: Record = value
        case ("pair", [str(first), str(second)]):
            record = Pair(first, second, "")
        case ("choices", [str(premise), str(question), str(), str(), *_]) if all(isinstance(v, str) for v in value):
            record = Choices(premise, question, tuple(value[2:]), "")
        case ("question", [str(question), str(context)]):
            record = Question(context, question, ())
        case ("bitext", str()):
            record = Bitext(value, "")
        case ("labelled", str()):
            record = vars(records)["LabelledText"](value, "")
        case _:
            return None
    return record


def is_empty(record: Record) -> bool:
    """Return whether there is nothing to predict: a sentence without words, or a translation of white space."""
    return not record.words if isinstance(record, Tagged) else isinstance(record, Bitext) and not record.source.strip()


def make_prediction(task: "Task", source: PreparedInput, decoded: Any, confidence: Any) -> Prediction:
    """Turn the decoded value of a task's head into a prediction."""
    if isinstance(source.record, Tagged):
        words, scores = source.record.words, tuple(confidence or ())
        if task.kind == "tree":
            return ParsePrediction(words, tuple(decoded[0]), tuple(decoded[1]), scores, source.offsets)
        return TagPrediction(words, tuple(decoded), scores, source.offsets)
    if isinstance(source.record, Question):
        return AnswerPrediction(decoded.of(source.record), decoded.start, decoded.end, confidence)
    return decoded if task.generates else LabelPrediction(decoded, confidence)


def decoded_value(prediction: Prediction) -> tuple[Any, Any]:
    """Return the decoded value of a prediction and its confidence, from which `make_prediction` makes it."""
    match prediction:
        case TagPrediction():
            return list(prediction.labels), list(prediction.scores)
        case ParsePrediction():
            return (list(prediction.heads), list(prediction.relations)), list(prediction.scores)
        case AnswerPrediction():
            from polyloom.tasks.question_answering import Stretch  # noqa: PLC0415 - imports torch

            return Stretch(prediction.start, prediction.end), prediction.score
        case LabelPrediction():
            return prediction.label, prediction.score
    return prediction, None


def prediction_from_dict(given: Mapping[str, Any]) -> Prediction:
    """Make a prediction of plain data, as JSON has it; a generated text is ``{"text": …}``."""
    for kind in (TagPrediction, ParsePrediction, LabelPrediction, AnswerPrediction):
        names = [field.name for field in fields(kind)]
        if given.keys() >= set(names):
            made: Prediction = kind(**{name: _as_tuple(given[name]) for name in names})
            return made
    if isinstance(text := given.get("text"), str):
        return text
    raise PolyloomError(f"{show_value(given)} is no prediction that this version knows.")


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def empty_prediction(task: "Task", source: PreparedInput) -> Prediction:
    """Return the prediction for an input without words."""
    return "" if task.generates else make_prediction(task, source, ((), ()) if task.kind == "tree" else (), ())


def show_value(value: object) -> str:
    """Show the beginning of a value and its type, for an error."""
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '…'} ({type(value).__name__})"
