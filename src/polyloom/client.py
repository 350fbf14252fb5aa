"""Predict with a server of ``polyloom serve`` as with a run on this machine; needs neither torch nor the weights.

`Client.predict_each` splits inputs into requests that the server accepts, `_ask` repeats a request until each of its
rows has an outcome or the time is up, and `_outcomes` sends it once. Predictions have no side effects, so a row that
may have been predicted already is sent again without harm.
"""

import contextlib
import json
import os
import random
import socket
import ssl
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx2

from polyloom.conditions import Condition, missing_language_error
from polyloom.data.kinds import RECORDS, kind_of
from polyloom.data.records import Prediction, Record
from polyloom.data.tokenization.sentences import join_sentences, split_sentences
from polyloom.errors import (
    CLIENT_VISIBLE_ERRORS,
    ConditionError,
    DeadlineError,
    OverloadedError,
    PolyloomError,
    TooLongError,
    UnavailableError,
)
from polyloom.inference.predictions import (
    Input,
    Names,
    check_characters,
    describe_long,
    pair_with_conditions,
    show_value,
)

TIMEOUT = 60.0
LONGEST_TIMEOUT = 3600.0
GRACE = 5.0  # seconds after a row's timeout in which the server reports it
BODY_FRAME = 100  # bytes of a body without its rows, at most
PAUSE = 0.5  # seconds before the first repetition if the server names none; doubled each time
LONGEST_PAUSE = 8.0
JITTER = 0.5  # random share added to a pause, so that clients do not all return at once
KEEPALIVE = 4.0  # seconds that an idle connection is kept: the server closes it after five
RETRIED = (429, 502, 503)
_ERRORS: dict[int, type[PolyloomError]] = {kind.status: kind for kind in CLIENT_VISIBLE_ERRORS} | {
    502: UnavailableError
}


class _TryAgainError(Exception):
    """A request failed in a way that may pass: `error` is raised if it does not, `after` are seconds to wait."""

    def __init__(self, error: PolyloomError, after: float = 0.0) -> None:
        super().__init__(str(error))
        self.error, self.after = error, after


class Client:
    """A server, which predicts like a run on this machine.

    A request is repeated while the server is full or restarting, until the time is up. Connections stay open for
    further requests; `close`, or a ``with`` statement, closes them. Threads may share a client, and a forked process
    opens connections of its own. Proxies are those of the environment (``HTTP_PROXY``, ``HTTPS_PROXY``, ``NO_PROXY``).

    Args:
        url: Address of the server, such as ``http://localhost:8000``.
        key: API key. Default: none.
        timeout: Seconds within which a row must have its answer, from when it is first sent.

    Attributes:
        info: What is served, and all limits.
        cut: Number of inputs that were longer than a model allows and were cut, by its name and the condition.
    """

    _http: httpx2.Client | None = None
    _process = 0  # that opened the connections

    def __init__(self, url: str, *, key: str | None = None, timeout: float = TIMEOUT) -> None:
        if not 0 < timeout <= LONGEST_TIMEOUT:
            raise PolyloomError(f"timeout: {timeout} is not a number of seconds up to {LONGEST_TIMEOUT:g}.")
        self.url, self.timeout = _check_url(url), timeout
        if key and not (key.isascii() and key.isprintable()):
            raise PolyloomError(f"{self.url}: the API key has characters that cannot be sent. Is it the right one?")
        self._key = key
        self.cut = Counter[tuple[str, str]]()
        try:
            self.info = self._get_json("/info", timeout=timeout)
        except _TryAgainError as failed:
            raise failed.error from failed
        except ConditionError:  # status 404
            self.info = None
        if not (isinstance(self.info, dict) and {"models", "limits"} <= self.info.keys()):
            raise PolyloomError(f"{self.url}: this is not the address of a server that `polyloom serve` started.")

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; a further prediction opens another."""
        if self._http is not None:
            self._http.close()
            self._http = None

    # -- predict ------------------------------------------------------------------------------------------------------

    def predict(self, inputs: Input | list[Input], conditions: Names | Sequence[Names]) -> Any:
        """Predict one input, or a list of inputs of any conditions; see `Run.predict`."""
        self.pop_length_warnings()  # counts from here on
        predictions = []
        for prediction in self.predict_each(pair_with_conditions(inputs, conditions)):
            if isinstance(prediction, PolyloomError):
                raise prediction
            predictions.append(prediction)
        if cut := self.pop_length_warnings().get("cut"):
            warnings.warn(cut, stacklevel=2)
        return predictions if isinstance(inputs, list) else predictions[0]

    def translate(
        self, texts: str | Sequence[str], source: str, target: str, *, pivot: str | None = None, sentences: bool = False
    ) -> Any:
        """Translate a text, or several; see `Run.translate`."""
        several = [texts] if isinstance(texts, str) else list(texts)
        route = [source, target] if pivot in (None, source, target) else [source, str(pivot), target]
        tasks = [name for model in self.info["models"] for name, about in model["tasks"].items() if about["bilingual"]]
        if not tasks:
            raise ConditionError(f"{self.url}: none of the runs that are served translates.")
        steps = [Condition(str(tasks[0]), *step) for step in pairwise(route)]
        for text in several:
            if not isinstance(text, str):
                raise PolyloomError(f"{steps[0]}: expected a text, not {show_value(text)}.")

        # All sentences of all texts share requests, then each text is put together from its own.
        split = [split_sentences(text) if sentences else [text] for text in several]
        translated: list[Input] = [part for parts in split for part in parts]
        for step in steps:
            translated = self.predict(translated, step)
        joined, begin = [], 0
        for parts in split:
            end = begin + len(parts)
            own = [str(text) for text in translated[begin:end]]
            joined.append(own[0] if len(own) == 1 else join_sentences(own))
            begin = end
        return joined[0] if isinstance(texts, str) else joined

    def predict_each(self, pairs: Iterable[tuple[Input, Names]]) -> Iterator[Prediction | PolyloomError]:
        """Predict inputs, each with its condition, in order.

        Yields:
            The prediction of each input; an error in place of the prediction of an input that has none.
        """
        named = [(value, self._parse_condition(name)) for value, name in pairs]
        rows = [_row(value, condition) for value, condition in named]
        outcomes = (outcome for chunk in self._chunks(rows) for outcome in self._ask(chunk))
        for (value, condition), outcome in zip(named, outcomes, strict=True):
            if isinstance(value, Record) and not isinstance(outcome, PolyloomError):
                # Words and pairs are both lists of texts in JSON. So a record of another kind than the task's may get a
                # prediction, which must not be taken for its own.
                kinds = [kind.prediction for kind in RECORDS.values() if kind.prediction and kind.accepts(value)]
                if not isinstance(outcome, tuple(kinds)):
                    yield PolyloomError(f"{condition}: {show_value(value)} is no input of this task.")
                    continue
            yield outcome

    def check(self, condition: Condition) -> None:
        """Raise an error unless a condition can be predicted."""
        path = f"/v2/models/{quote(str(condition))}/ready"
        self._repeat(lambda left: self._get_json(path, timeout=left))

    def pop_length_warnings(self) -> dict[str, str]:
        """Return a sentence about inputs that were cut since the last call, as a predictor does."""
        sentences = []
        for model in self.info["models"]:
            counts = {condition: count for (name, condition), count in self.cut.items() if name == model["name"]}
            sentences.append(describe_long(counts, "cut", max_length=model["max_length"]))
        self.cut.clear()
        report = " ".join(filter(None, sentences))
        return {"cut": report} if report else {}

    def _parse_condition(self, name: Names) -> Condition:
        if not isinstance(name, Names) or "/" not in str(name):
            models = self.info["models"]
            # The error lists what the model with such a task or language has; with none, what the first one has.
            related = [model for model in models if name in (*model["tasks"], *model["languages"])]
            model = (related or models)[0]
            raise missing_language_error(name, tasks=list(model["tasks"]), languages=model["languages"])
        return Condition.parse(name)

    # -- requests for rows --------------------------------------------------------------------------------------------

    def _chunks(self, rows: Iterable[bytes]) -> Iterator[list[bytes]]:
        """Split rows into requests that the server accepts."""
        limits = self.info["limits"]
        max_rows = min(limits[name] for name in ("max_rows", "max_rows_per_key", "max_waiting"))
        chunk: list[bytes] = []
        size = BODY_FRAME
        for row in rows:
            if chunk and (len(chunk) == max_rows or size + len(row) > limits["max_body_bytes"]):
                yield chunk
                chunk, size = [], BODY_FRAME
            chunk.append(row)
            size += len(row) + 1
        if chunk:
            yield chunk

    def _ask(self, rows: Sequence[bytes]) -> list[Prediction | PolyloomError]:
        """Return the outcomes of the rows of one request. Rows that were refused, or got no answer, are sent again."""
        outcomes: dict[int, Prediction | PolyloomError] = {}

        def attempt(left: float) -> None:
            missing = [place for place in range(len(rows)) if place not in outcomes]
            failure = _TryAgainError(UnavailableError(f"{self.url}: the connection was lost."))
            for index, outcome in self._outcomes([rows[place] for place in missing], timeout=left):
                if isinstance(outcome, OverloadedError | UnavailableError):
                    failure = _TryAgainError(outcome)
                else:
                    outcomes[missing[index]] = outcome
            if len(outcomes) < len(rows):
                raise failure

        try:
            self._repeat(attempt)
        except (OverloadedError, UnavailableError, DeadlineError, TooLongError) as error:
            # Rows that have their outcome keep it. A body can be too long only if it has a single row (`_chunks`).
            return [outcomes.get(place, error) for place in range(len(rows))]
        return [outcomes[place] for place in range(len(rows))]

    def _outcomes(self, rows: Sequence[bytes], *, timeout: float) -> Iterator[tuple[int, Prediction | PolyloomError]]:
        """Send a request, and yield the index and the outcome of each row as it arrives."""
        body = b'{"timeout":%.3g,"rows":[%b]}' % (timeout, b",".join(rows))
        with self._request("/v1/predict", body, timeout=timeout + GRACE) as response:
            # Not `iter_lines`: it also splits at line separators of Unicode, which texts may have.
            rest = b""
            for chunk in response.iter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    try:
                        answer = json.loads(line)
                        index = range(len(rows))[answer["index"]]
                        outcome: Prediction | PolyloomError
                        if problem := answer.get("error"):
                            outcome = _make_error(problem["status"], problem["detail"])
                        else:
                            outcome = RECORDS.find(answer["kind"]).from_dict(answer["prediction"])
                            self.cut[answer["model"], answer["condition"]] += answer["cut"]
                    except (ValueError, LookupError, TypeError, AttributeError) as error:
                        raise PolyloomError(f"{self.url}: this version does not know the server's answer.") from error
                    yield index, outcome

    # -- HTTP ---------------------------------------------------------------------------------------------------------

    def _repeat(self, attempt: Callable[[float], Any]) -> None:
        """Make attempts, each with the seconds that are left, until one succeeds or there is no time for another."""
        end, pause = time.monotonic() + self.timeout, PAUSE
        while True:
            try:
                attempt(max(end - time.monotonic(), 0.001))
            except _TryAgainError as failed:
                wait = max(failed.after, pause) * (1 + JITTER * random.random())  # noqa: S311 - no secret
                if wait >= end - time.monotonic():
                    raise failed.error from failed
                time.sleep(wait)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                return

    def _get_json(self, path: str, *, timeout: float) -> Any:
        """Get JSON; ``None`` if the response is something else."""
        with self._request(path, timeout=timeout) as response:
            content = response.read()
        try:
            return json.loads(content)
        except ValueError:
            return None

    @contextlib.contextmanager
    def _request(self, path: str, body: bytes | None = None, *, timeout: float) -> Iterator[httpx2.Response]:
        """Get a path, or post to it, and give the response, whose content is not read yet.

        Args:
            path: Path on the server.
            body: JSON to post. Default: nothing is posted.
            timeout: Seconds without any byte after which the server is given up.

        Raises:
            _TryAgainError: The server cannot be reached, is full, or closed the connection, also while it is read.
            PolyloomError: The server refused the request.
        """
        # A forked child must not write into connections that its parent uses.
        if self._http is None or self._process != os.getpid():
            headers = {"Content-Type": "application/json", "Accept": "application/x-ndjson, application/json"}
            if self._key:
                headers["Authorization"] = f"Bearer {self._key}"
            pool = httpx2.Limits(keepalive_expiry=KEEPALIVE)  # as many connections as threads ask at once
            self._http, self._process = httpx2.Client(headers=headers, limits=pool), os.getpid()
        method = "GET" if body is None else "POST"
        try:
            with self._http.stream(method, self.url + path, content=body, timeout=timeout) as response:
                if response.status_code != 200:
                    response.read()
                    raise self._refusal(path, response)
                yield response
        except httpx2.TimeoutException as error:
            raise DeadlineError(f"{self.url}: no answer within {timeout:.3g} seconds.") from error
        except httpx2.RequestError as error:
            raise self._lost(error) from error

    def _refusal(self, path: str, response: httpx2.Response) -> Exception:
        """Make the error of a response with another status than 200."""
        status = response.status_code
        if status == 401:
            problem = "does not accept this API key" if self._key else "needs an API key"
            return PolyloomError(
                f"{self.url}: the server {problem}. Give connect(url, key=…) the right one; polyloom predict takes it "
                "from the environment variable POLYLOOM_API_KEY."
            )
        try:
            problem = response.json()
            # Paths under /v2 are of another protocol, which calls it so.
            error = _make_error(status, problem["detail"] if "detail" in problem else problem["error"])
        except (ValueError, LookupError, TypeError):  # a proxy, or another server
            moved = f", moved to {response.headers['Location']}" if "Location" in response.headers else ""
            hint = "" if status in RETRIED else " Is this the address of a server that `polyloom serve` started?"
            what = f"{path} was answered with status {status} ({response.reason_phrase}{moved}).{hint}"
            error = _make_error(status if status in RETRIED else None, f"{self.url}: {what}")
        after = response.headers.get("Retry-After", "")
        return _TryAgainError(error, float(after) if after.isdecimal() else 0.0) if status in RETRIED else error

    def _lost(self, error: httpx2.RequestError) -> Exception:
        """Make the error of a connection that cannot be opened, or was lost."""
        # httpx2 wraps the error of httpcore2, which wraps that of the operating system.
        reason: BaseException | None = error
        while reason is not None and not isinstance(reason, OSError):
            reason = reason.__context__
        match reason:
            case ConnectionRefusedError():
                what = "connection refused. Is the server running, and is this its port?"
            case socket.gaierror():
                what = f"there is no host {urlsplit(self.url).hostname!r}."
            case ssl.SSLError():
                return PolyloomError(f"{self.url}: no secure connection ({reason}). Is it an http:// server?")
            case None if "illegal" in str(error):  # the word of h11, which parses responses
                return PolyloomError(f"{self.url}: this server does not speak HTTP. Is it an https:// server?")
            case _:
                what = f"the connection was lost ({error or type(error).__name__})."
        return _TryAgainError(UnavailableError(f"{self.url}: {what}"))


def _make_error(status: int | None, detail: str) -> PolyloomError:
    """Make the error that a server described (RFC 9457)."""
    return _ERRORS.get(status or 0, PolyloomError)(detail)


def _check_url(url: str) -> str:
    """Return the address of a server without a slash at its end."""
    with contextlib.suppress(ValueError, httpx2.InvalidURL):  # of a port or an address out of range
        httpx2.URL(url)
        parts = urlsplit(url)
        plain = not (parts.username or parts.query or parts.fragment) and parts.port != 0
        if parts.scheme in ("http", "https") and parts.hostname and plain and url.isascii() and url.isprintable():
            return url.rstrip("/")
    raise PolyloomError(f"{url!r} is not the address of a server, such as http://localhost:8000 or https://host.")


def _row(value: Input, condition: Condition) -> bytes:
    """Write an input as JSON: a text, or several as a list."""
    plain = kind_of(value).to_value(value) if isinstance(value, Record) else value
    texts = plain if isinstance(plain, list | tuple) else [plain]
    if not all(isinstance(text, str) for text in texts):
        raise PolyloomError(f"{condition}: expected a text, texts as a tuple, or a record, not {show_value(value)}.")
    check_characters(plain, condition)
    return json.dumps({"condition": str(condition), "input": plain}, ensure_ascii=False).encode()


def connect(url: str, *, key: str | None = None, timeout: float = TIMEOUT) -> Client:
    """Connect to a server that ``polyloom serve`` started; it predicts like a loaded run. Needs no torch.

    Args:
        url: Address of the server, such as ``http://localhost:8000``.
        key: API key. Default: none.
        timeout: Seconds within which an input must have its answer, from when it is first sent. A request is repeated
            until then while the server is full or restarting. Default: 60.
    """
    return Client(url, key=key, timeout=timeout)
