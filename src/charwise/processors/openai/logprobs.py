"""Log-probabilities of a healed completion, as a reader of the answer sees its tokens."""

from __future__ import annotations

from charwise.api.writer import IMPOSSIBLE, Message, spelled
from charwise.tokens.vocabulary import Vocabulary


def beyond(told: Message, id: int, begun: bytes, vocabulary: Vocabulary) -> Message:
    """Return log-probabilities whose first token begins in the prompt, as a client sees them.

    The token, and those listed beside it, show their bytes beyond the prompt. One that does not
    write the end of the prompt is no alternative.

    Args:
        told: `logprobs` of a choice, of completions or of a chat.
        id: of the first token.
        begun: bytes of it that are in the prompt.
        vocabulary: of the model.

    >>> vocabulary = Vocabulary.from_bytes([b"range", b"rank", b"(", b"ran"])
    >>> told = {"tokens": ["range"], "top_logprobs": [{"range": -0.5, "rank": -2.0, "(": -0.9}]}
    >>> beyond(told, 0, b"ran", vocabulary)
    {'tokens': ['ge'], 'top_logprobs': [{'ge': -0.5, 'k': -2.0}]}
    """
    own = spelled((vocabulary.tokens[id] or b"")[len(begun) :])

    def shown(token: str) -> str | None:
        """Return the text that a token shows; None if it is no alternative."""
        named = token.removeprefix("token_id:")
        if named != token and named.isdecimal():
            raw = vocabulary.tokens[int(named)] or b""
        else:
            raw = token.encode("utf-8", "replace")
        rest = raw.removeprefix(begun) if raw.startswith(begun) else b""
        return (token if named != token else spelled(rest)) if rest else None

    def alternative(entry: Message, text: str) -> Message:
        raw = list(entry.get("bytes") or ())[len(begun) :]
        return {**entry, "token": text, **({"bytes": raw} if "bytes" in entry else {})}

    found = {name: list(values) for name, values in told.items() if values}
    if "tokens" in found:
        first = found["tokens"][0]
        if top := (found.get("top_logprobs") or [None])[0]:
            kept = {text: p for one, p in top.items() if p > IMPOSSIBLE and (text := shown(one))}
            mine = {shown(first) or own: top[first]} if first in top else {}
            found["top_logprobs"][0] = kept | mine
        found["tokens"][0] = shown(first) or own
    if "content" in found:
        first = found["content"][0]
        others = [
            alternative(one, text)
            for one in first.get("top_logprobs") or ()
            if one["logprob"] > IMPOSSIBLE and (text := shown(one["token"]))
        ]
        text = shown(first["token"]) or own
        found["content"][0] = {**alternative(first, text), "top_logprobs": others}
    return {**told, **found}
