"""Kinds of records: what is predicted for each, and how inputs and predictions are read, recognised and written.

A reader of corpora yields records of one kind, and a task names the kind that it reads (`Task.kind`). Everything else
that depends on the kind is here: `Run.predict`, streams, servers, checks of corpora and reports ask the kind and know
none by name. A kind of your own is a subclass of `RecordKind`, registered with `register_record`. This module does
not import torch, because clients of a server use it.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from polyloom.conditions import Condition
from polyloom.data.readers.choices import first_label, make_choices
from polyloom.data.readers.conllu import Row, Sentence, parse_conllu, write_sentence
from polyloom.data.readers.questions import make_question
from polyloom.data.records import (
    AnswerPrediction,
    Bitext,
    Choices,
    Conversation,
    LabelledText,
    LabelPrediction,
    Pair,
    ParsePrediction,
    Prediction,
    Question,
    Record,
    Tagged,
    TagPrediction,
    Text,
    Tree,
)
from polyloom.errors import DataError, Location, PolyloomError
from polyloom.io.files import checked_text, json_object
from polyloom.io.plain_json import to_json
from polyloom.registry import Registry

Format = Literal["text", "tokenized", "columns", "conllu", "jsonl"]
Display = Literal["tags", "tree", "label", "answer", "text"]
STDIN = Path("stdin")
MAX_LETTERS = 50_000  # of one input, which is held in memory at once
MAX_WORDS = 2_000  # of a sentence; a parser scores all pairs of words


class Line(NamedTuple):
    """A line with its number and its line end."""

    number: int
    """Its number, from 1."""
    text: str
    """Its text. Of a line that is no text: a single character in its place."""
    error: DataError | None = None
    """Why it is no text: not UTF-8, too long."""

    @property
    def content(self) -> str:
        """The text without its line end and, in the first line, without a byte order mark."""
        text = self.text.removesuffix("\n").removesuffix("\r")
        return text.removeprefix("\ufeff") if self.number == 1 else text


@dataclass(frozen=True)
class StreamItem:
    """One input of a stream."""

    line: int
    """Number of its first line."""
    record: Any
    """The record to predict; ``None`` for an empty line or sentence."""
    source: dict[str, Any] | Sentence | str = ""
    """What it was read from: a JSON object, a sentence of CoNLL-U, or the raw text."""
    error: str = ""
    """Why there is no record, if the input is wrong."""
    condition: Condition | None = None
    """What is predicted; ``None`` for a blank line where every line names its own condition."""


class RecordKind(ABC):
    """A kind of record.

    The defaults suit a record of one or several texts, whose prediction is a dataclass: such a kind sets `name`,
    `record`, `prediction` and `fields`, and defines `from_texts` and `texts`.
    """

    name: ClassVar[str]
    """Name of the kind, to which readers and tasks refer."""
    record: ClassVar[type[Record]]
    """Type of its records."""
    prediction: ClassVar[type | None] = None
    """Type of predictions: a dataclass whose first field is the result, or ``str``. Default: nothing is predicted."""
    fields: ClassVar[tuple[str, ...]] = ("text",)
    """Names of the texts of an input, as JSON lines have them. Default: one text."""
    expected: ClassVar[str] = "a text"
    """What an input is, for errors."""
    display: ClassVar[Display] = "label"
    """How reports and web pages show an example: words with tags, a tree, a label, an answer or a text."""
    max_letters: ClassVar[int | None] = MAX_LETTERS
    """Most letters of a text that a stream accepts. Default: 50,000."""
    multiline: ClassVar[tuple[Format, ...]] = ()
    """Formats of streams in which one input takes several lines, up to a blank one."""

    @property
    def example(self) -> Any:
        """An input with which a server tests itself: by default a letter for each of `fields`."""
        return "a" if len(self.fields) == 1 else ("a",) * len(self.fields)

    @property
    def inputs(self) -> Mapping[Format, Format]:
        """Formats of inputs, the usual one first, each with that of its predictions; none if nothing is predicted."""
        if self.prediction is None:
            return {}
        return {"text": "text", "jsonl": "jsonl"} if len(self.fields) == 1 else {"columns": "columns", "jsonl": "jsonl"}

    @property
    def outputs(self) -> tuple[Format, ...]:
        """Formats that can hold its predictions."""
        return tuple(dict.fromkeys(self.inputs.values()))

    # -- records -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def from_texts(self, texts: Sequence[str]) -> Record:
        """Make a record without a label from one text for each of `fields`."""

    @abstractmethod
    def texts(self, record: Any) -> tuple[str, ...]:
        """Return all texts of a record, those of `fields` first; checks compare corpora by them."""

    def labels(self, record: Any) -> tuple[str, ...]:
        """Return the labels of a record, which checks of corpora count; by default its ``label`` if it has one."""
        return (record.label,) if hasattr(record, "label") else ()

    def gold(self, record: Any) -> str:
        """Return what should have been predicted, as reports show it."""
        return " / ".join(self.labels(record))

    def from_value(self, value: Any, language: str) -> Record | None:  # noqa: ARG002 - for words
        """Make a record of an input: of a record itself, a text or several texts; ``None`` if it is anything else."""
        if isinstance(value, self.record):
            return value
        if len(self.fields) == 1:
            texts = [value]
        elif isinstance(value, list | tuple) and len(value) == len(self.fields):
            texts = list(value)
        else:
            return None
        return self.from_texts(texts) if all(isinstance(text, str) for text in texts) else None

    def to_value(self, record: Any) -> str | tuple[str, ...]:
        """Return the texts from which `from_value` makes a record, to send them to a server."""
        texts = self.texts(record)
        return texts[0] if len(self.fields) == 1 else texts

    def accepts(self, record: Record) -> bool:
        """Return whether a record can be predicted."""
        return isinstance(record, self.record)

    def from_json(self, entry: Mapping[str, Any], line: int, language: str) -> Record | None:  # noqa: ARG002
        """Make a record from a JSON object; ``None`` if all its texts are empty."""
        if not set(self.fields) <= entry.keys():
            expected = ", ".join(f'"{name}": "…"' for name in self.fields)
            raise DataError(STDIN, line, f"expected {{{expected}}}.")
        texts = [checked_text(entry[name], Location(STDIN, line), name=name).strip() for name in self.fields]
        return self.from_texts(texts) if any(texts) else None

    # -- predictions -------------------------------------------------------------------------------------------------

    def empty_prediction(self, record: Any) -> Prediction | None:  # noqa: ARG002 - for words
        """Return the prediction for a record in which there is nothing to predict; ``None`` for all others."""
        return None

    def from_dict(self, values: Mapping[str, Any]) -> Prediction:
        """Make a prediction from plain data, as `prediction_to_dict` returns it."""
        assert self.prediction is not None
        names = [field.name for field in fields(self.prediction)]
        if not values.keys() >= set(names):
            raise PolyloomError(f"{values!r:.60} is no prediction that this version knows.")
        return self.prediction(**{name: _as_tuple(values[name]) for name in names})

    def to_line(self, prediction: Prediction) -> str:
        """Return a prediction as a text on one line: by default its first field."""
        return str(getattr(prediction, fields(prediction)[0].name))

    # -- streams -----------------------------------------------------------------------------------------------------

    def read(self, lines: Sequence[Line], form: Format, language: str) -> StreamItem:
        """Read one input of a stream.

        Args:
            lines: One line that is not blank, or the lines of a `multiline` format with the blank one at their end.
            form: One of `inputs`.
            language: Language of the input.
        """
        number, content = lines[0].number, lines[0].content
        if form == "jsonl":
            entry = json_object(content, Location(STDIN, number))
        else:
            entry = self.from_columns(content.split("\t") if form == "columns" else [content], number)
        record = self.from_json(entry, number, language)
        if record and self.max_letters and (letters := max(map(len, self.texts(record)))) > self.max_letters:
            what = f"{letters:,} letters. At most {self.max_letters:,} are allowed: split the text."
            raise DataError(STDIN, number, what)
        return StreamItem(number, record, entry if form == "jsonl" else "")

    def from_columns(self, texts: Sequence[str], line: int) -> dict[str, Any]:
        """Return the columns of a line as `from_json` takes them."""
        if len(texts) != len(self.fields):
            what = f"{_columns(texts)}, not {len(self.fields)}: {' and '.join(self.fields)}, separated by tabs."
            raise DataError(STDIN, line, what)
        return dict(zip(self.fields, texts, strict=True))

    def write(self, item: StreamItem, prediction: Prediction | None, form: Format, *, scores: bool = False) -> str:
        """Write a prediction to a stream: into the JSON object that was read, or on a line of its own.

        Args:
            item: The input.
            prediction: Its prediction; ``None`` for an empty input.
            form: One of `outputs`.
            scores: Whether JSON has the probabilities, as ``score`` or ``scores``.
        """
        if form == "jsonl":
            return write_json(item, **self.to_json(item, prediction, scores=scores))
        return f"{'' if prediction is None else self.to_line(prediction)}\n"

    def to_json(self, item: StreamItem, prediction: Prediction | None, *, scores: bool) -> dict[str, Any]:  # noqa: ARG002
        """Return the keys that a prediction adds to the JSON object of its input: by default its fields."""
        assert self.prediction is not None
        names = [field.name for field in fields(self.prediction)]
        values = {name: None if prediction is None else getattr(prediction, name) for name in names}
        return {name: value for name, value in values.items() if scores or name not in ("score", "scores")}


RECORDS: Registry[RecordKind] = Registry("kind of record")


def register_record(kind: type[RecordKind]) -> type[RecordKind]:
    """Register a kind of record under its name; usable as a decorator."""
    RECORDS.register(kind.name, kind())
    return kind


def kind_of(record: Record) -> RecordKind:
    """Return the kind of a record."""
    for kind in RECORDS.values():
        if kind.record is type(record):
            return kind
    raise PolyloomError(f"{type(record).__name__} is the record of no kind. Register one with register_record.")


def prediction_to_dict(prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as plain data for JSON; a generated text is ``{"text": …}``."""
    return {"text": prediction} if isinstance(prediction, str) else asdict(prediction)


def write_json(item: StreamItem, **values: Any) -> str:
    """Write the object that was read, with further keys."""
    source = item.source if isinstance(item.source, dict) else {}
    return to_json({**source, **values}) + "\n"


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def _columns(texts: Sequence[str]) -> str:
    return "1 column" if len(texts) == 1 else f"{len(texts)} columns"


# -- texts ------------------------------------------------------------------------------------------------------------


@register_record
class TextKind(RecordKind):
    """Raw text, from which language models learn; there is nothing to predict."""

    name = "text"
    record = Text
    display = "text"

    def from_texts(self, texts: Sequence[str]) -> Record:
        """Make a text."""
        return Text(texts[0])

    def texts(self, record: Text) -> tuple[str, ...]:
        """Return the text."""
        return (record.text,)


@register_record
class ConversationKind(RecordKind):
    """Conversations, whose answers are continued (`Run.generate`), not predicted."""

    name = "conversation"
    record = Conversation
    display = "text"

    def from_texts(self, texts: Sequence[str]) -> Record:
        """Raise an error: a conversation has roles."""
        raise NotImplementedError

    def texts(self, record: Conversation) -> tuple[str, ...]:
        """Return the contents of all messages."""
        return tuple(message.content for message in record.messages)


@register_record
class LabelledKind(RecordKind):
    """A text with one label."""

    name = "labelled"
    record = LabelledText
    prediction = LabelPrediction

    def from_texts(self, texts: Sequence[str]) -> Record:
        """Make a text without a label."""
        return LabelledText(texts[0], "")

    def texts(self, record: LabelledText) -> tuple[str, ...]:
        """Return the text."""
        return (record.text,)


@register_record
class PairKind(RecordKind):
    """Two texts with the label of the relation between them."""

    name = "pair"
    record = Pair
    prediction = LabelPrediction
    fields = ("premise", "hypothesis")
    expected = "two texts as a tuple"
    max_letters = None

    def from_texts(self, texts: Sequence[str]) -> Record:
        """Make a pair without a label."""
        return Pair(texts[0], texts[1], "")

    def texts(self, record: Pair) -> tuple[str, ...]:
        """Return both texts."""
        return record.first, record.second


@register_record
class BitextKind(RecordKind):
    """A text to translate, with its translation."""

    name = "bitext"
    record = Bitext
    prediction = str
    display = "text"

    def from_texts(self, texts: Sequence[str]) -> Record:
        """Make a source without a translation."""
        return Bitext(texts[0], "")

    def texts(self, record: Bitext) -> tuple[str, ...]:
        """Return source and target."""
        return record.source, record.target

    def empty_prediction(self, record: Bitext) -> Prediction | None:
        """Translate white space as nothing."""
        return None if record.source.strip() else ""

    def from_dict(self, values: Mapping[str, Any]) -> Prediction:
        """Return the translation."""
        if not isinstance(values.get("text"), str):
            raise PolyloomError(f"{values!r:.60} is no translation.")
        return values["text"]

    def to_line(self, prediction: Prediction) -> str:
        """Return the translation, whose line ends would break the order of lines."""
        return re.sub(r"[\r\n]+", " ", prediction)

    def to_json(self, item: StreamItem, prediction: Prediction | None, *, scores: bool) -> dict[str, Any]:  # noqa: ARG002
        """Add the translation beside the source, whose key is ``text``."""
        return {"translation": prediction or ""}


@register_record
class ChoicesKind(RecordKind):
    """A premise, a question about it and choices; the label is the position of the right one."""

    name = "choices"
    record = Choices
    prediction = LabelPrediction
    fields = ("premise", "question", "choice1", "choice2")
    expected = "premise, question and choices as a tuple"

    def from_texts(self, texts: Sequence[str]) -> Record:
        """Make a record of premise, question and choices."""
        return Choices(texts[0], texts[1], tuple(texts[2:]), "")

    def texts(self, record: Choices) -> tuple[str, ...]:
        """Return premise, question and choices."""
        return record.premise, record.question, *record.choices

    def from_value(self, value: Any, language: str) -> Record | None:
        """Make a record with two choices or more."""
        if isinstance(value, list | tuple) and len(value) > 4 and all(isinstance(text, str) for text in value):
            return self.from_texts(value)
        return super().from_value(value, language)

    def from_json(self, entry: Mapping[str, Any], line: int, language: str) -> Record | None:  # noqa: ARG002
        """Make a record of an object in one of the layouts of corpora."""
        return make_choices(entry, Location(STDIN, line), labelled=False)

    def from_columns(self, texts: Sequence[str], line: int) -> dict[str, Any]:
        """Take all columns behind the question as choices."""
        if len(texts) < 4:
            raise DataError(STDIN, line, f"{_columns(texts)}, not 4 or more: a premise, a question, and choices.")
        return {"premise": texts[0], "question": texts[1], "choices": list(texts[2:])}

    def to_json(self, item: StreamItem, prediction: Prediction | None, *, scores: bool) -> dict[str, Any]:
        """Add the label as a number. In the layout of Social IQa labels begin at 1, so that it can be read again."""
        values = super().to_json(item, prediction, scores=scores)
        first = first_label(item.source) if isinstance(item.source, dict) else 0
        return values | {"label": None if prediction is None else int(prediction.label) + first}


@register_record
class QuestionKind(RecordKind):
    """A question about a context, which has the answer."""

    name = "question"
    record = Question
    prediction = AnswerPrediction
    fields = ("question", "context")
    expected = "question and context as a tuple"
    display = "answer"

    def from_texts(self, texts: Sequence[str]) -> Record:
        """Make a question without answers."""
        return Question(texts[1], texts[0], ())

    def texts(self, record: Question) -> tuple[str, ...]:
        """Return question and context."""
        return record.question, record.context

    def gold(self, record: Question) -> str:
        """Return all gold answers."""
        return " / ".join(dict.fromkeys(answer.text for answer in record.answers))

    def from_json(self, entry: Mapping[str, Any], line: int, language: str) -> Record | None:  # noqa: ARG002
        """Make a question; white space stays, because positions in the context count it."""
        return make_question(entry, Location(STDIN, line), labelled=False)

    def to_line(self, prediction: Prediction) -> str:
        """Return the answer, with single spaces."""
        return " ".join(prediction.text.split())

    def to_json(self, item: StreamItem, prediction: Prediction | None, *, scores: bool) -> dict[str, Any]:  # noqa: ARG002
        """Add the answer as SQuAD has it, so that it can be read again."""
        answers = (
            [{"text": prediction.text, "answer_start": prediction.start}] if prediction and prediction.text else []
        )
        return {"answers": answers} | ({"score": prediction.score} if scores and prediction else {})


# -- words ------------------------------------------------------------------------------------------------------------


class WordsKind(RecordKind):
    """Base class of words with something for each of them."""

    columns: ClassVar[Mapping[str, str]]
    """The fields of a prediction that have a value for each word, with their columns of CoNLL-U."""
    expected = "a text, or the words of a sentence as a tuple"
    example = ("a",)  # words, because segmenting some languages needs a package
    multiline = ("columns", "conllu")

    @property
    def inputs(self) -> Mapping[Format, Format]:
        """Formats of inputs, each with that of predictions."""
        return {"text": "columns", "tokenized": "columns", "columns": "columns", "conllu": "conllu", "jsonl": "jsonl"}

    @property
    def outputs(self) -> tuple[Format, ...]:
        """Formats of predictions."""
        return "columns", "conllu", "jsonl"

    def from_texts(self, texts: Sequence[str]) -> Record:
        """Make a sentence of words."""
        return Tagged(tuple(texts), ())

    def texts(self, record: Any) -> tuple[str, ...]:
        """Return the words."""
        words: tuple[str, ...] = record.words
        return words

    def from_value(self, value: Any, language: str) -> Record | None:
        """Make a sentence of words, of a record, or of a text, which is segmented into words."""
        if isinstance(value, str):
            return _segment(value, language)
        if isinstance(value, Tagged | Tree):
            return Tagged(value.words, ())
        if isinstance(value, list | tuple) and all(isinstance(word, str) and word.strip() for word in value):
            return self.from_texts(value)
        return None

    def to_value(self, record: Any) -> str | tuple[str, ...]:
        """Return the words."""
        return self.texts(record)

    def accepts(self, record: Record) -> bool:
        """Return whether a record has words."""
        return isinstance(record, Tagged | Tree)

    def empty_prediction(self, record: Any) -> Prediction | None:
        """Predict nothing for a sentence without words."""
        assert self.prediction is not None
        return None if record.words else self.prediction((), *[()] * len(self.columns), ())

    def read(self, lines: Sequence[Line], form: Format, language: str) -> StreamItem:
        """Read a sentence; raw text is segmented into words."""
        line = lines[0]
        match form:
            case "text":
                return _segmented_item(line.number, _plain_text(line), line.text, language)
            case "tokenized":
                return _word_item(line.number, _plain_text(line).split(), line.text)
            case "conllu":
                (sentence,) = parse_conllu([(row.number, row.text) for row in lines], STDIN)
                return _word_item(sentence.line, sentence.words, sentence)
            case "columns":
                # The word is the first column, whatever follows it: files with tags can be tagged again.
                words = []
                for row in lines:
                    if not row.content.strip():
                        break
                    words.append(row.content.split("\t" if "\t" in row.content else None, maxsplit=1)[0])
                    if not words[-1].strip():
                        raise DataError(STDIN, row.number, "no word in the first column.")
                return _word_item(line.number, words, "")
        entry = json_object(line.content, Location(STDIN, line.number))
        if isinstance(entry.get("words"), list):
            words = [checked_text(word, Location(STDIN, line.number), name="words") for word in entry["words"]]
            if any(not word.strip() or set(word) & set("\t\n\r") for word in words):
                raise DataError(STDIN, line.number, "a word is empty, or has a tab or a line end in it.")
            return _word_item(line.number, words, entry)
        if "text" in entry:
            text = checked_text(entry["text"], Location(STDIN, line.number), name="text")
            return _segmented_item(line.number, text, entry, language)
        raise DataError(STDIN, line.number, 'expected {"words": ["…", …]} or {"text": "…"}.')

    def write(self, item: StreamItem, prediction: Prediction | None, form: Format, *, scores: bool = False) -> str:
        """Write a sentence with what was predicted for its words."""
        values = {name: list(getattr(prediction, name, ())) for name in self.columns}
        words = item.record.words if item.record else ()
        if form == "jsonl":
            known = isinstance(item.source, dict) and "words" in item.source
            values = ({} if known else {"words": list(words)}) | values
            if item.record and item.record.offsets:
                values["offsets"] = list(item.record.offsets)
            if scores and prediction is not None:
                values["scores"] = list(prediction.scores)
            return write_json(item, **values)
        if form != "conllu":
            rows = zip(words, *values.values(), strict=True)
            return "".join("\t".join(map(str, row)) + "\n" for row in rows) + "\n"

        # CoNLL-U: a blank line keeps its line end, and of a sentence all but the predicted columns stays as it was.
        if item.record is None:
            return "\r\n" if isinstance(item.source, str) and item.source.endswith("\r\n") else "\n"
        sentence = item.source
        if not isinstance(sentence, Sentence):
            # Offsets that touch are words without a space between them, which CoNLL-U marks in MISC.
            joined = {i for i, ((_, end), (start, _)) in enumerate(pairwise(item.record.offsets)) if start == end}
            tokens, text = [], ""
            for i, word in enumerate(words):
                misc = "SpaceAfter=No" if i in joined else "_"
                tokens.append(Row(str(i + 1), word, "_", "_", "_", "_", "_", "_", "_", misc))
                text += word if i in joined else f"{word} "
            sentence = Sentence((f"# text = {text.strip()}",), tuple(tokens))
        predicted = {column: values[name] for name, column in self.columns.items()}
        return write_sentence(sentence.with_predictions(**predicted))


@register_record
class TagsKind(WordsKind):
    """Words with one tag each."""

    name = "tags"
    record = Tagged
    prediction = TagPrediction
    display = "tags"
    columns: ClassVar[Mapping[str, str]] = {"labels": "upos"}

    def labels(self, record: Tagged) -> tuple[str, ...]:
        """Return the tags."""
        return record.tags


@register_record
class TreeKind(WordsKind):
    """Words with a dependency tree."""

    name = "tree"
    record = Tree
    prediction = ParsePrediction
    display = "tree"
    columns: ClassVar[Mapping[str, str]] = {"heads": "heads", "relations": "relations"}

    @property
    def inputs(self) -> Mapping[Format, Format]:
        """Formats of inputs; trees are usually written as CoNLL-U."""
        return {"text": "conllu", "tokenized": "conllu", "columns": "conllu", "conllu": "conllu", "jsonl": "jsonl"}

    def labels(self, record: Tree) -> tuple[str, ...]:
        """Return the relations."""
        return record.relations


def _segment(text: str, language: str, *, limit: int | None = None) -> Tagged:
    """Segment raw text into words, the first of them only if there is a limit; the record has their offsets."""
    from polyloom.data.tokenization.segmentation import iter_words  # noqa: PLC0415 - only for raw text

    words = list(islice(iter_words(text, language), limit))
    return Tagged(tuple(word.text for word in words), (), tuple((word.start, word.end) for word in words))


def _segmented_item(line: int, text: str, source: dict[str, Any] | str, language: str) -> StreamItem:
    _check_size(line, text.split())  # before a segmenter works on it
    try:
        # One word more than allowed shows that there are too many, without segmenting the rest.
        sentence = _segment(text, language, limit=MAX_WORDS + 1)
    except DataError:
        raise
    except PolyloomError as error:  # such as a missing package: the error gets the number of the line
        raise DataError(STDIN, line, str(error)) from error
    _check_size(line, sentence.words, more=True)
    return StreamItem(line, sentence if sentence.words else None, source)


def _word_item(line: int, words: Sequence[str], source: dict[str, Any] | Sentence | str) -> StreamItem:
    _check_size(line, words)
    return StreamItem(line, Tagged(tuple(words), ()) if words else None, source)


def _check_size(line: int, words: Sequence[str], *, more: bool = False) -> None:
    """Raise an error for a sentence that is too long; `more` if the words behind the limit were not counted."""
    letters = sum(map(len, words))
    if len(words) > MAX_WORDS or letters > MAX_LETTERS:
        size = f"a sentence of {len(words):,} words{' or more' * more} and {letters:,} letters. "
        limit = f"At most {MAX_WORDS:,} and {MAX_LETTERS:,} are allowed: split it into sentences."
        raise DataError(STDIN, line, size + limit)


def _plain_text(line: Line) -> str:
    """Return a line of text; one that looks like another format is an error, because its tags would become words."""
    if line.text.count("\t") == 9 or (line.number == 1 and line.text.startswith('{"')):
        looks = "CoNLL-U. Add --input conllu." if "\t" in line.text else "JSON. Add --input jsonl."
        raise DataError(STDIN, line.number, f"this is not plain text but {looks}")
    return line.content
