"""Requests to an inference server, and the meaning of its refusals.

A server that is busy or was not there for a moment is asked again, a few times; whatever else goes
wrong is a `ServerError` that says what to do. An interrupt closes the connection, and a server
that looks, as vLLM does, then drops the request.
"""

from __future__ import annotations

import os
import time
from typing import Any

from charwise.errors import ServerError, SettingError, check_number, needs, shown

#: Where a key is looked for that was not given.
KEY = "CHARWISE_API_KEY"

#: Statuses of a server that may answer the next time.
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})

#: Seconds before each further try.
_PAUSES = (0.5, 2.0)


class Client:
    """One server.

    Args:
        url: where its paths begin, such as `http://127.0.0.1:8000/v1`.
        api_key: sent as a bearer token; by default what the environment's CHARWISE_API_KEY says.
        seconds: how long it may say nothing.

    Raises:
        MissingExtraError: httpx is not installed.
        SettingError: an address that is none, or seconds that are none.
    """

    def __init__(self, url: str, *, api_key: str | None = None, seconds: float = 60.0) -> None:
        with needs("completions", "httpx is not installed"):
            import httpx
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise SettingError(f"the server is at {shown(url)}: give http://HOST:PORT/v1.")
        check_number("seconds", seconds, 0.0, float("inf"))
        key = os.environ.get(KEY) if api_key is None else api_key
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.url = url.rstrip("/")
        self.seconds = seconds
        self._client = httpx.Client(headers=headers, timeout=httpx.Timeout(seconds, connect=10.0))
        self._silent, self._gone = httpx.TimeoutException, httpx.HTTPError
        self._bad_url = (httpx.InvalidURL, httpx.UnsupportedProtocol)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer to a request: a GET without a body, else a POST.

        Args:
            path: after the URL; one that begins with ".." is taken from above its `/v1`.

        Raises:
            ServerError: whatever is not an answer, and what to do about it.
        """
        url = self.url.removesuffix("/v1") + path[2:] if path[:2] == ".." else self.url + path
        for pause in (*_PAUSES, None):
            try:
                response = self._client.request("POST" if body else "GET", url, json=body)
            except self._silent as error:
                raise ServerError(
                    f"{url} said nothing for {self.seconds:g} s. Give it longer: seconds=…."
                ) from error
            except self._bad_url as error:
                raise SettingError(f"{url} is no address: give http://HOST:PORT/v1.") from error
            except self._gone as error:
                if pause is None:
                    raise ServerError(
                        f"no server answers at {url} ({error}). Is it running, and is this where?"
                    ) from error
            else:
                if response.status_code not in _PASSING or pause is None:
                    return _read(url, response)
            time.sleep(pause)
        raise AssertionError  # the last try returns or raises

    def close(self) -> None:
        """Close its connections."""
        self._client.close()


def _read(url: str, response: Any) -> dict[str, Any]:
    """The object that a response holds, or the error that it is."""
    status = response.status_code
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if status == 200 and isinstance(answer, dict):
        return answer
    if status == 200:
        raise ServerError(f"{url} answers with something else than a JSON object.", status)
    said = _said(answer) or response.text[:200].strip()
    raise ServerError(
        f"{url} answers {status}: {said or 'nothing'}{_what_to_do(status, said)}", status
    )


def _said(answer: Any) -> str:
    """The message in an error's body, as the servers write it."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or ""
    return str(error).rstrip(".") if error else ""


def _what_to_do(status: int, said: str) -> str:
    if status in (401, 403):
        return f". Give the key with api_key=…, or in the environment variable {KEY}."
    if status == 404 and "model" not in said:
        return (
            ". Is the address the one before /completions, such as http://HOST:PORT/v1? A server "
            "of chats alone has no completions, and cannot be used."
        )
    if "logprobs" in said:
        return (
            ". Ask for fewer, top_logprobs=…, or start vLLM with --max-logprobs as large as that."
        )
    return "."
