"""Write JSON that every parser reads: without NaN, infinity and halves of surrogate pairs."""

import json
import math
from typing import Any

from polyloom.errors import PolyloomError

NOTE = "null stands for a number that is not finite."


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Write a value as one JSON text; NaN and infinity become ``null``, and an object then has a ``note``."""
    try:
        try:
            return _encodable(value, indent=indent)
        except ValueError:  # a number that JSON does not have
            plain = _finite(value)
            return _encodable({**plain, "note": NOTE} if isinstance(plain, dict) else plain, indent=indent)
    except RecursionError:
        raise PolyloomError("JSON is nested too deep.") from None


def _encodable(value: Any, *, indent: int | None) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, indent=indent)
    return text


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
