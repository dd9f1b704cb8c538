"""The embedded model behind the gateway, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import torch

from charwise import SortedVocabulary
from charwise.gateway.app import connect
from charwise.healing import allowed_next, cut, remaining
from listening import listening
from upstream import Upstream


class Pair(NamedTuple):
    """A gateway and the server behind it: clients of both, and the server's state."""

    client: httpx.Client
    plain: httpx.Client
    upstream: Upstream
    index: SortedVocabulary

    def post(self, path: str = "/v1/completions", **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "temperature": 0, "max_tokens": 4, **fields}
        return self.client.post(path, json=body)

    def texts(self, **fields: Any) -> list[str]:
        response = self.post(**fields)
        assert response.status_code == 200, response.text
        assert response.headers["x-charwise"].startswith("healed"), response.headers
        return [choice["text"] for choice in response.json()["choices"]]

    def reference(self, prompt: str, tokens: int) -> str:
        """Greedy text under the mask of `allowed_next`, in which forced tokens do not count."""
        kept, forced = cut(self.upstream.ids(prompt), self.index)
        ids: list[int] = []
        text = b""
        while tokens:
            with torch.inference_mode():
                row = self.upstream.model(torch.tensor([kept + ids])).logits[0, -1]
            left = remaining(forced, ids, self.index.vocabulary)
            assert left is not None
            allowed = torch.from_numpy(allowed_next(left, self.index).copy())
            ids.append(int(allowed[row[allowed].argmax()]))
            beyond = self.index.vocabulary.decode(ids)[len(forced) :]
            tokens -= len(beyond) > len(text)
            text = beyond
        return text.decode("utf-8", "replace")


@contextmanager
def running(model: Any, index: SortedVocabulary, kind: str) -> Iterator[Pair]:
    upstream = Upstream(model, index.vocabulary, kind)
    with listening(upstream.app) as behind:
        gateway = asyncio.run(connect(behind, lambda name: index, seconds=300))
        with (
            listening(gateway) as front,
            httpx.Client(base_url=front, timeout=300) as client,
            httpx.Client(base_url=behind, timeout=300) as plain,
        ):
            yield Pair(client, plain, upstream, index)
