"""Whether the proxy's tokenizer is that of the server behind: both tokenize a sample.

With another tokenizer a prompt is cut where the model has no boundary, and heals wrongly. The
sample has what tokenizers differ in: spaces, indentation, digits, accents, scripts and emoji.
"""

from __future__ import annotations

from charwise.errors import SettingError, TokenizationError, shown
from charwise.processors.proxy.relay import Headers, Relay
from charwise.tokens.vocabulary import Vocabulary

#: What both tokenize, each text for itself.
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
