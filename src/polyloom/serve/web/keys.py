"""API keys: a file with the hash of each key, its name, and whether it may administer the server."""

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

from polyloom.errors import ConfigError, PolyloomError


class KeyRefusedError(PolyloomError):
    """A request has no valid key."""

    status = 401


@dataclass(frozen=True)
class Key:
    """A key: what it is called in logs and for fairness, and whether it may administer."""

    name: str
    admin: bool = False


class Keys:
    """The keys of a server; without any, everyone is the same anonymous caller.

    Args:
        path: A file with a line ``SHA256 NAME`` or ``SHA256 NAME admin`` for each key. Default: none.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._keys: list[tuple[str, Key]] = []
        if path is None:
            return
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
            digest, *rest = line.split() or ["#"]
            if digest.startswith("#"):
                continue
            if len(digest) != 64 or len(rest) not in (1, 2) or rest[1:] not in ([], ["admin"]):
                raise ConfigError(
                    str(path), [f"line {number}: expected the SHA-256 of a key, its name, and maybe admin."]
                )
            self._keys.append((digest.lower(), Key(rest[0], admin=len(rest) == 2)))
        if not self._keys:
            raise ConfigError(str(path), ["no keys, so nobody could use the server."])

    def find(self, secret: str | None) -> Key:
        """Return the key that a caller has shown.

        Raises:
            KeyRefusedError: It is not one of the keys.
        """
        if not self._keys:
            return Key("anonymous")
        digest = hashlib.sha256((secret or "").encode(errors="surrogatepass")).hexdigest()
        found = None
        for known, key in self._keys:  # all of them, so that the time does not tell which one it was
            if hmac.compare_digest(known, digest):
                found = key
        if found is None:
            raise KeyRefusedError("a valid API key is needed: Authorization: Bearer KEY.")
        return found


def bearer(header: str | None) -> str | None:
    """Return the key of an ``Authorization`` header."""
    kind, _, secret = (header or "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else None
