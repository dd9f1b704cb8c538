"""An ASGI app that hands requests on to an HTTP server, and its answers back, as they come.

It also asks that server questions of our own: whether its tokenizer is ours, for one. With another
tokenizer a prompt is cut where the model has no boundary, and heals wrongly.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from charwise.api.errors import Refused, UpstreamError
from charwise.api.http import refusal, stream_response, while_connected
from charwise.errors import SettingError, TokenizationError, needs, shown
from charwise.tokens.vocabulary import Vocabulary

logger = logging.getLogger("charwise.proxy")

#: Headers of a request, as ASGI has them.
Headers = Sequence[tuple[bytes, bytes]]

#: Headers that belong to one connection, not to the request.
_OF_A_HOP = {
    b"connection",
    b"host",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}


class Relay:
    """Everything goes through as it is: paths, headers, bodies, streams, errors.

    A client that leaves ends the request behind. A server that is not there is a 502, one that is
    silent for too long a 504.

    Args:
        upstream: address of the server behind, such as `http://127.0.0.1:8080`.
        seconds: how long it may say nothing.

    Attributes:
        address: of the server behind, without a password.

    Raises:
        MissingExtraError: httpx is not installed.
        SettingError: an address that is none.
    """

    def __init__(self, upstream: str, seconds: float = 600.0) -> None:
        with needs("proxy", "httpx is not installed"):
            import httpx
        if not upstream.startswith(("http://", "https://")):
            raise SettingError(f"the server behind is at {upstream!r}: give http://HOST:PORT.")
        self._errors = (httpx.ConnectError, httpx.TimeoutException, httpx.HTTPError)
        self._timeout_error = httpx.TimeoutException
        self._url_error = httpx.InvalidURL
        self._upstream = upstream.rstrip("/")
        parts = urlsplit(self._upstream)
        self.address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(seconds, connect=min(10.0, seconds), pool=None),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )
        self._client.headers.clear()  # the client's own headers, and no others

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def ask(
        self, path: str, headers: Headers, body: dict[str, Any] | None = None
    ) -> tuple[int, Any]:
        """Status and JSON of a path; 0 if the server says nothing, None if it says no JSON."""
        status, said = await self.read(path, headers, body)
        try:
            return status, json.loads(said)
        except (ValueError, RecursionError):
            return status, None

    async def read(
        self, path: str, headers: Headers, body: dict[str, Any] | None = None
    ) -> tuple[int, bytes]:
        """Status and body of a short answer; status 0 for none, and no body for a long one."""
        method = "GET" if body is None else "POST"
        url, said = self._upstream + path, bytearray()
        try:
            stream = self._client.stream(method, url, headers=list(headers), json=body)
            async with stream as response:
                async for part in response.aiter_bytes():
                    said += part
                    # The answers to our own questions are short.
                    if len(said) > 2**20:
                        return response.status_code, b""
        except self._errors:
            return 0, b""
        return response.status_code, bytes(said)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on one request, until it is answered or its client leaves."""
        client, heard = Request(scope, receive), asyncio.Event()
        if {b"content-length", b"transfer-encoding"}.isdisjoint(
            name for name, _ in scope["headers"]
        ):
            heard.set()
        try:
            request = self._request(scope, None if heard.is_set() else _body(client, heard))
        except self._url_error as error:
            wrong = f"the path {scope['path'][:80]!r}: {error}."
            await refusal(Refused(400, wrong))(scope, receive, send)
            return

        async def listen() -> Message:
            await heard.wait()  # until then the body is what is heard
            return await receive()

        try:
            response = await while_connected(listen, self._client.send(request, stream=True))
        except ClientDisconnect:
            return
        except self._errors as error:
            failure = self._failure(request, error, "cannot be reached")
            await refusal(Refused(failure.status, str(failure)))(scope, receive, send)
            return
        if response is None:
            return
        headers = [(name.lower(), value) for name, value in response.headers.raw]
        headers = [pair for pair in headers if pair[0] not in _OF_A_HOP]
        parts = stream_response(response.aiter_raw(), response.status_code, headers)
        try:
            await parts(scope, listen, send)
        except self._errors as error:  # the connection breaks off, as the one behind did
            raise self._failure(request, error, "broke off") from error
        finally:
            await response.aclose()

    def _request(self, scope: Scope, body: AsyncIterator[bytes] | None) -> Any:
        """Return the request to the server behind.

        Raises:
            httpx.InvalidURL: a path that is none, or would lead to another server.
        """
        path = scope.get("raw_path") or scope["path"].encode()
        if not path.startswith(b"/"):  # "@elsewhere/" would make another host of ours
            raise self._url_error("it does not begin with /")
        query = scope.get("query_string", b"")
        return self._client.build_request(
            scope["method"],
            self._upstream + (path + (b"?" + query if query else b"")).decode("latin-1"),
            headers=[pair for pair in scope["headers"] if pair[0].lower() not in _OF_A_HOP],
            content=body,
        )

    def _failure(self, request: Any, error: Exception, what: str) -> UpstreamError:
        name = str(error) or type(error).__name__
        logger.warning("%s: %s", request.url, name)
        if isinstance(error, self._timeout_error):
            return UpstreamError(
                f"the server at {self.address} did not answer in time: {name}", 504
            )
        return UpstreamError(f"the server at {self.address} {what}: {name}")


async def _body(client: Request, heard: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield the request's body, as it comes; set `heard` at its end."""
    async for part in client.stream():
        yield part
    heard.set()


#: What both tokenizers are given, each text for itself: it has what tokenizers differ in, which are
#: spaces, indentation, digits, accents, scripts and emoji.
SAMPLE = (
    "The quick brown fox isn't here.",
    "def f(x):\n    return x[1:] == 'a'\n\n\tclass_name = CamelCase()",
    "x  =   1234567.89 + 0xFF",
    "naïve café, “Übermaß” — Привет, 日本語",
    "😀 → ∑ https://a.b/c?d=e&f=%20",
)


async def has_tokenizer(relay: Relay, vocabulary: Vocabulary, headers: Headers = ()) -> bool:
    """Return whether the server tokenizes a sample as we do; False if it does not say.

    `llama-server` and vLLM have `/tokenize`, llama-cpp-python has `/extras/tokenize`.

    Args:
        relay: to the server behind.
        vocabulary: of our tokenizer.
        headers: that the server may want to see, such as a key.

    Raises:
        SettingError: the first text that it tokenizes otherwise.
    """
    compared = 0
    for text in SAMPLE:
        try:
            ours = list(vocabulary.encode(vocabulary.lead + text.encode()))
        except TokenizationError:  # no token string spells it
            continue
        theirs = await _tokens_of(relay, text, headers)
        if theirs is None:
            return False
        start = list(vocabulary.bos_ids)
        if start and theirs[: len(start)] == start:
            theirs = theirs[len(start) :]
        if ours != theirs:
            at = next(
                (at for at, pair in enumerate(zip(ours, theirs, strict=False)) if len({*pair}) > 1),
                min(len(ours), len(theirs)),
            )
            raise SettingError(
                f"the server at {relay.address} has another tokenizer: of {shown(text)} its token "
                f"{at} is {theirs[at : at + 1]}, and ours {ours[at : at + 1]}. Give the tokenizer "
                "of its model: --tokenizer FILE.gguf, a folder, or a name on the hub."
            )
        compared += 1
    return compared > 0


async def _tokens_of(relay: Relay, text: str, headers: Headers) -> list[int] | None:
    """The ids that the server makes of a text, without a start token; None if it does not say."""
    asked = {"content": text, "add_special": False, "prompt": text, "add_special_tokens": False}
    for path, body in (("/tokenize", asked), ("/extras/tokenize", {"input": text})):
        status, answer = await relay.ask(path, headers, body)
        tokens = answer.get("tokens") if isinstance(answer, dict) else None
        if status == 200 and isinstance(tokens, list) and all(type(id) is int for id in tokens):
            return tokens
        if status not in (404, 405):
            return None
    return None
