"""Messages between the process that speaks HTTP and the process that has the models: JSON, each after its length."""

import asyncio
import json
from typing import Any

from polyloom.errors import PolyloomError

MOST = 1 << 28  # bytes of a message; a longer one is a mistake of ours
Message = dict[str, Any]


class ClosedError(PolyloomError):
    """The other process has gone."""


async def receive(reader: asyncio.StreamReader) -> Message:
    """Wait for the next message.

    Raises:
        ClosedError: There will be none.
    """
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > MOST:
            raise ClosedError(f"a message of {size:,} bytes.")
        message: Message = json.loads(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise ClosedError("the connection was closed.") from error
    return message


def send(writer: asyncio.StreamWriter, message: Message) -> None:
    """Send a message; it is written as soon as the other process reads."""
    content = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
    writer.write(len(content).to_bytes(4, "big") + content)
