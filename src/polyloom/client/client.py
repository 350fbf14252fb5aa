"""Predict with a server as with a run: the same methods, predictions and errors."""

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, Self
from urllib.parse import quote

from polyloom.client.connection import Connection, Patience, TryAgainError, error_of
from polyloom.conditions import Condition, missing_language_error
from polyloom.data.records import Bitext, Choices, LabelledText, Pair, Question, Tagged, Tree
from polyloom.data.tokenization.sentences import join_sentences, split_sentences
from polyloom.errors import (
    ConditionError,
    DeadlineError,
    OverloadedError,
    PolyloomError,
    TooLongError,
    UnavailableError,
)
from polyloom.inference.long_inputs import describe_long
from polyloom.inference.predictions import (
    AnswerPrediction,
    Input,
    LabelPrediction,
    Names,
    ParsePrediction,
    Prediction,
    TagPrediction,
    check_characters,
    pair_with_conditions,
    prediction_from_dict,
    show_value,
)

TIMEOUT = 60.0
LONGEST_TIMEOUT = 3600.0
GRACE = 5.0  # seconds after its timeout in which a server says that there is no answer
AROUND = 100  # bytes of a body beside its rows
# What is predicted for each kind of record. Words and pairs look alike in JSON.
_PREDICTED: dict[type, tuple[type, ...]] = {
    Tagged: (TagPrediction, ParsePrediction), Tree: (TagPrediction, ParsePrediction), Pair: (LabelPrediction,),
    LabelledText: (LabelPrediction,), Choices: (LabelPrediction,), Question: (AnswerPrediction,), Bitext: (str,),
}  # fmt: skip


class Client:
    """A server, which predicts like a run on this machine.

    A server that is full, or is being restarted, is asked again until the time is up. Connections stay open for further
    requests; `close`, or a ``with`` statement, closes them.

    Args:
        url: Where the server is, such as ``http://localhost:8000``.
        key: API key. Default: none.
        timeout: Seconds within which a row must have its answer, from when it is first sent.

    Attributes:
        info: What is served, and all limits.
        cut: Number of inputs that were longer than a model allows and were cut, by its name and the condition.
    """

    def __init__(self, url: str, *, key: str | None = None, timeout: float = TIMEOUT) -> None:
        if not 0 < timeout <= LONGEST_TIMEOUT:
            raise PolyloomError(f"timeout: {timeout} is not a number of seconds up to {LONGEST_TIMEOUT:g}.")
        self.timeout, self.cut = timeout, Counter[tuple[str, str]]()
        self._connection = Connection(url, key)
        try:
            self.info = self._connection.json("/info", timeout=timeout)
        except TryAgainError as failed:
            raise failed.error from failed
        except ConditionError:  # status 404
            self.info = None
        if not (isinstance(self.info, dict) and {"models", "limits"} <= self.info.keys()):
            raise PolyloomError(f"{self.url}: this is not the address of a server that `polyloom serve` started.")

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._connection.url

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if "_connection" in vars(self):  # else the arguments were wrong
            self.close()

    def close(self) -> None:
        """Close all connections; a further prediction opens another."""
        self._connection.close()

    # -- predict ------------------------------------------------------------------------------------------------------

    def predict(self, inputs: Input | list[Input], conditions: Names | Sequence[Names]) -> Any:
        """Predict one input, or a list of inputs of any conditions; see `Run.predict`."""
        self.report_long()  # counts from here on
        predictions = []
        for prediction in self.predict_each(pair_with_conditions(inputs, conditions)):
            if isinstance(prediction, PolyloomError):
                raise prediction
            predictions.append(prediction)
        if cut := self.report_long().get("cut"):
            warnings.warn(cut, stacklevel=2)
        return predictions if isinstance(inputs, list) else predictions[0]

    def translate(
        self, texts: str | Sequence[str], source: str, target: str, *, pivot: str | None = None, sentences: bool = False
    ) -> Any:
        """Translate a text, or several; see `Run.translate`."""
        several = [texts] if isinstance(texts, str) else list(texts)
        route = [source, target] if pivot in (None, source, target) else [source, str(pivot), target]
        steps = [Condition(self._translation(), *step) for step in pairwise(route)]
        for text in several:
            if not isinstance(text, str):
                raise PolyloomError(f"{steps[0]}: expected a text, not {show_value(text)}.")
        split = [split_sentences(text) if sentences else [text] for text in several]
        translated: list[Input] = [part for parts in split for part in parts]
        for step in steps:
            translated = self.predict(translated, step)
        rest = iter(map(str, translated))
        joined = [next(rest) if len(parts) == 1 else join_sentences([*islice(rest, len(parts))]) for parts in split]
        return joined[0] if isinstance(texts, str) else joined

    def predict_each(self, pairs: Iterable[tuple[Input, Names]]) -> Iterator[Prediction | PolyloomError]:
        """Predict inputs, each with its condition, in order.

        Yields:
            The prediction of each input; an error in place of the prediction of an input that has none.
        """
        named = [(value, self._condition(name)) for value, name in pairs]
        rows = [_row(value, condition) for value, condition in named]
        given = iter(named)
        for chunk in self._chunks(rows):
            for outcome, (value, condition) in zip(self._ask(chunk), given, strict=False):
                wrong = not isinstance(outcome, (PolyloomError, *_PREDICTED.get(type(value), (object,))))
                yield PolyloomError(f"{condition}: {show_value(value)} is no input of this task.") if wrong else outcome

    def check(self, condition: Condition) -> None:
        """Raise an error unless a condition can be predicted."""
        patience = Patience(self.timeout)
        while True:
            try:
                self._connection.json(f"/v2/models/{quote(str(condition))}/ready", timeout=patience.left)
            except TryAgainError as failed:
                if not patience.wait(failed.after):
                    raise failed.error from failed
            else:
                return

    def report_long(self) -> dict[str, str]:
        """Return a sentence about inputs that were cut since the last call, as a predictor does."""
        sentences = []
        for model in self.info["models"]:
            counts = {condition: count for (name, condition), count in self.cut.items() if name == model["name"]}
            sentences.append(describe_long(counts, "cut", max_length=model["max_length"]))
        self.cut.clear()
        told = " ".join(filter(None, sentences))
        return {"cut": told} if told else {}

    def _condition(self, name: Names) -> Condition:
        if not isinstance(name, Names) or "/" not in str(name):
            models = self.info["models"]
            model = next((model for model in models if name in (*model["tasks"], *model["languages"])), models[0])
            raise missing_language_error(name, tasks=list(model["tasks"]), languages=model["languages"])
        return Condition.parse(name)

    def _translation(self) -> str:
        """Return the name of the task that translates."""
        for model in self.info["models"]:
            for name, about in model["tasks"].items():
                if about["bilingual"]:
                    return str(name)
        raise ConditionError(f"{self.url}: none of the runs that are served translates.")

    # -- ask ----------------------------------------------------------------------------------------------------------

    def _chunks(self, rows: Iterable[bytes]) -> Iterator[list[bytes]]:
        """Split rows into requests that the server accepts."""
        limits = self.info["limits"]
        most_rows = min(limits[name] for name in ("max_rows", "max_rows_per_key", "max_waiting"))
        chunk: list[bytes] = []
        size = AROUND
        for row in rows:
            if chunk and (len(chunk) == most_rows or size + len(row) > limits["max_body_bytes"]):
                yield chunk
                chunk, size = [], AROUND
            chunk.append(row)
            size += len(row) + 1
        if chunk:
            yield chunk

    def _ask(self, rows: Sequence[bytes]) -> list[Prediction | PolyloomError]:
        """Ask for the rows of one request; those for which there is no room, or no answer, are asked again alone."""
        patience, outcomes = Patience(self.timeout), dict[int, Prediction | PolyloomError]()
        while missing := [place for place in range(len(rows)) if place not in outcomes]:
            failed = TryAgainError(UnavailableError(f"{self.url}: the connection was lost."))
            try:
                for index, outcome in self._answers([rows[place] for place in missing], patience.left):
                    if isinstance(outcome, OverloadedError | UnavailableError):
                        failed = TryAgainError(outcome)
                    else:
                        outcomes[missing[index]] = outcome
            except TryAgainError as error:
                failed = error
            except (DeadlineError, TooLongError) as error:  # too long: a single row
                return [outcomes.get(place, error) for place in range(len(rows))]
            if len(outcomes) < len(rows) and not patience.wait(failed.after):
                return [outcomes.get(place, failed.error) for place in range(len(rows))]
        return [outcomes[place] for place in range(len(rows))]

    def _answers(self, rows: Sequence[bytes], timeout: float) -> Iterator[tuple[int, Prediction | PolyloomError]]:
        """Send a request, and yield the index and the outcome of each row as it arrives."""
        body = b'{"timeout":%.3g,"rows":[%b]}' % (timeout, b",".join(rows))
        for line in self._connection.lines("/v1/predict", body, timeout=timeout + GRACE):
            if not line.endswith(b"\n"):  # the connection was lost
                return
            try:
                answer = json.loads(line)
                index, error = range(len(rows))[answer["index"]], answer.get("error")
                if not error and answer["cut"]:
                    self.cut[answer["model"], answer["condition"]] += 1
                yield index, error_of(error) if error else prediction_from_dict(answer["prediction"])
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise PolyloomError(f"{self.url}: the server answered what this version does not know.") from error


def _row(value: Input, condition: Condition) -> bytes:
    """Write an input as JSON: a text, or several as a list."""
    match value:
        case Tagged() | Tree():
            plain: Any = value.words
        case Pair():
            plain = (value.first, value.second)
        case LabelledText():
            plain = value.text
        case Bitext():
            plain = value.source
        case Choices():
            plain = (value.premise, value.question, *value.choices)
        case Question():
            plain = (value.question, value.context)
        case _:
            plain = value
    texts = plain if isinstance(plain, list | tuple) else [plain]
    if not all(isinstance(text, str) for text in texts):
        raise PolyloomError(f"{condition}: expected a text, texts as a tuple, or a record, not {show_value(value)}.")
    check_characters(plain, condition)
    return json.dumps({"condition": str(condition), "input": plain}, ensure_ascii=False).encode()


def connect(url: str, *, key: str | None = None, timeout: float = TIMEOUT) -> Client:
    """Connect to a server that ``polyloom serve`` started; it predicts like a loaded run. Needs no torch.

    Args:
        url: Where the server is, such as ``http://localhost:8000``.
        key: API key. Default: none.
        timeout: Seconds within which an input must have its answer, from when it is first sent. A server that is full
            or is being restarted is asked again until then. Default: 60.
    """
    return Client(url, key=key, timeout=timeout)
