"""A vLLM plug-in that gets unknown LoRAs from a Polyloom server.

For an unknown model such as ``chat/sw``, vLLM calls this resolver, which asks a Polyloom server (``polyloom serve RUN
--adapters FOLDER``). The server generates the LoRA and writes it to the folder, and vLLM loads it from there.

Environment variables: ``POLYLOOM_URL``, such as ``http://localhost:8000``, and ``POLYLOOM_API_KEY``, if the server
needs one.
"""

import asyncio
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from itertools import count
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

TIMEOUT = 30.0
NOT_FOUND = 404


class PolyloomResolver(LoRAResolver):  # type: ignore[misc]
    """Gets LoRAs from a Polyloom server.

    Args:
        url: Address of the server.
        key: API key. Default: none.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url, self.key = url.rstrip("/"), key
        self._numbers = count(1)
        self._known: dict[str, int] = {}  # by hash of weights; vLLM would use the wrong LoRA if two shared a number

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:  # noqa: ARG002
        """Return the LoRA of a condition such as ``chat/sw``; ``None`` if the server has no such condition."""
        adapter = await asyncio.to_thread(self._fetch, lora_name)  # vLLM's event loop must not wait
        if adapter is None:
            return None
        number = self._known.setdefault(adapter["weights"], next(self._numbers))
        return LoRARequest(lora_name=lora_name, lora_int_id=number, lora_path=adapter["path"])

    def _fetch(self, condition: str) -> dict[str, Any] | None:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        address = f"{self.url}/v1/adapters/{urllib.parse.quote(condition)}"
        request = urllib.request.Request(address, headers=headers)  # noqa: S310 - the address is a setting
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:  # noqa: S310
                adapter: dict[str, Any] = json.load(response)
                return adapter
        except urllib.error.HTTPError as error:
            if error.code == NOT_FOUND:
                return None
            raise


def register() -> None:
    """Register the resolver; vLLM calls this when it starts."""
    if url := os.environ.get("POLYLOOM_URL"):
        LoRAResolverRegistry.register_resolver("polyloom", PolyloomResolver(url, os.environ.get("POLYLOOM_API_KEY")))
