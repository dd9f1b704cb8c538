"""The plan of a request: whether it can be healed, and the request to the server behind.

That depends on what the kind of server takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from charwise.api.limits import PROXY
from charwise.api.request import HEAL, SHORT, heal_rule, texts_or_ids, without_heal
from charwise.api.writer import Message
from charwise.errors import CharwiseError, SettingError, shown
from charwise.healing import Rule
from charwise.processors.openai.answer import Call
from charwise.processors.proxy.answer import TextAnswer
from charwise.processors.proxy.cut import CutText, cut_text, forced_first
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.stops import Stops
from charwise.tokens.vocabulary import Vocabulary


@dataclass(frozen=True)
class Server:
    """The fields that a kind of server takes.

    Attributes:
        name: of the kind.
        default_tokens: what it writes if a completion request does not say how much; None for all
            that there is room for.
        several: whether it writes `n` completions.
        streams_to_all: whether it goes on with a stream when the next request comes.
        native: whether it has `/completion`, in llama.cpp's own form.
        starts: whether an empty prompt becomes a start token, so that nothing need be kept.
        why_not: why nothing can be healed there, in one word.
    """

    name: str
    default_tokens: int | None = None
    several: bool = False
    streams_to_all: bool = False
    native: bool = False
    starts: bool = False
    why_not: str | None = None


#: Why nothing is healed for a server whose tokenizer is not ours.
OTHER_TOKENIZER = "tokenizer"

#: By the name that the option `--server` takes.
SERVERS = {
    server.name: server
    for server in (
        Server("llama.cpp", several=True, streams_to_all=True, native=True),
        Server("llama-cpp-python", default_tokens=16),
        Server("ollama", why_not="ollama-takes-no-grammar"),
        Server("vllm", why_not="vllm-has-a-middleware"),
        Server("unknown", why_not="unknown-server"),
    )
}

#: Fields that cannot go with healing, and why.
_UNFIT = {
    "suffix": "the completion does not continue the prompt's end",
    "logprobs": "they would list the tokens that write the prompt's end again",
    "n_probs": "they would list the tokens that write the prompt's end again",
    "json_schema": "only the server makes a grammar of it: give a grammar",
    "response_format": "only the server makes a grammar of it: give a grammar",
    "grammar_lazy": "the grammar would not be in force at the start",
    "best_of": "the best of several would be chosen by other probabilities",
    "prompt_embeds": "a prompt given as embeddings has no text",
    "multimodal_data": "images are not text",
    "response_fields": "what is taken off is not in all of them",
    "min_tokens": "the server would count the tokens that write the prompt's end again",
}

#: How many tokens are asked for, by llama.cpp's own name and by OpenAI's.
_MAX_TOKENS = ("n_predict", "max_tokens")


def plan(
    request: Message, index: SortedVocabulary, server: Server, *, native: bool, asked_only: bool
) -> list[TextAnswer] | str:
    """Return an answer to come for each prompt, or why the request goes through, in one word.

    Args:
        request: as the client sent it.
        index: of the model's vocabulary.
        server: behind.
        native: whether it is in the form of llama.cpp's `/completion`.
        asked_only: heal only what asks for it.

    Raises:
        CharwiseError: healing was asked for, and cannot be had.
    """
    rule, without = heal_rule(request), without_heal(request)
    if rule == "exact":
        raise SettingError(
            "exact healing asks for log-probabilities of named tokens after given tokens, which "
            f'the server behind ({server.name}) does not tell: give "auto". vLLM\'s own '
            "middleware can."
        )
    if rule == "off" or (rule is None and asked_only):
        return "asked" if rule else "not-asked"
    reason = "cut"
    try:
        unfit = _why_not(without, server, native)
        if unfit is not None:
            reason, why = unfit
            raise SettingError(
                f"this request cannot be healed: {why}. Leave {HEAL} out to have it as it is."
            )
        texts = texts_or_ids(without.get("prompt"), with_ids=False)
        cuts = [_cut(text, index, rule, server) for text in texts]
        if not any(cut.forced for cut in cuts):
            return "nothing-to-heal"
        return [
            _answer(without, text, cut, index, server, native, number)
            for number, (text, cut) in enumerate(zip(texts, cuts, strict=True))
        ]
    except CharwiseError:
        if rule is not None:
            raise
        return reason


def _cut(text: str, index: SortedVocabulary, rule: Rule | None, server: Server) -> CutText:
    return cut_text(text, index, "auto" if rule is None else rule, starts=server.starts)


def _why_not(request: Message, server: Server, native: bool) -> tuple[str, str] | None:
    """A word and a sentence; None if the request can be healed."""
    if server.why_not is not None:
        if server.why_not == OTHER_TOKENIZER:
            return server.why_not, "the server behind has another tokenizer than the proxy"
        return server.why_not, f"the server behind ({server.name}) has no way to force a text"
    if native and not server.native:
        return "endpoint", f"{server.name} has no such endpoint"
    for name, reason in _UNFIT.items():
        if request.get(name) not in (None, False, 0, "", [], {}, {"type": "text"}):
            return name, f"{name} is set, and {reason}"
    texts = texts_or_ids(request.get("prompt"), with_ids=False)
    if not texts:
        return "prompt", "its prompt is no text, and token ids do not say where words end"
    wanted = _completions(request, server)
    if not isinstance(wanted, int) or wanted < 1:
        return "too-many", f"the number of its completions is {shown(wanted)}"
    if excess := PROXY.exceeded(len(texts), wanted, request.get("stop"), None):
        return "too-many", excess
    if native and (len(texts) > 1 or wanted > 1 or not isinstance(request["prompt"], str)):
        return "several", "this endpoint is healed for one prompt and one completion"
    if len(texts) > 1 and request.get("stream") and not server.streams_to_all:
        return "several", f"{server.name} breaks a stream off when the next request comes"
    if not isinstance(request.get("grammar") or "", str):
        return "grammar", "its grammar is no text"
    field, most = _most_tokens(request, server)
    if field is not None and most == 0 and server.default_tokens is None:
        return field, f"{field} is 0, so nothing is generated"
    return None


def _completions(request: Message, server: Server) -> Any:
    """How many completions of a prompt are asked for; llama.cpp's own name for it goes first."""
    native = request.get("n_cmpl") if server.native else None
    return (request.get("n") if native is None else native) or 1


def _most_tokens(request: Message, server: Server) -> tuple[str | None, int | None]:
    """How many tokens are asked for, and the field that says so; a negative number is no bound."""
    for name in _MAX_TOKENS if server.native else _MAX_TOKENS[1:]:
        most = request.get(name)
        if isinstance(most, int) and not isinstance(most, bool):
            return name, most
    return None, None


def _answer(
    request: Message,
    prompt: str,
    cut: CutText,
    index: SortedVocabulary,
    server: Server,
    native: bool,
    number: int,
) -> TextAnswer:
    name, given = _most_tokens(request, server)
    most = server.default_tokens if given is None else given
    if most is not None and (most < 0 or (most == 0 and server.default_tokens is not None)):
        most = None
    body: Message = {**request, "prompt": cut.kept}
    several = _completions(request, server) if server.several else 1
    short = False
    if cut.forced:
        body["grammar"] = forced_first(cut.forced, request.get("grammar") or None)
        if most is not None:
            # How many tokens the server takes to write the text again is not known beforehand.
            short = most <= SHORT
            body[name or "max_tokens"] = most + cut.healed.most_again
        body |= _without_specials(request, cut.forced, index.vocabulary)
        if server.streams_to_all:  # it shows where tokens begin, and can be ended in time
            body["stream"] = True
        stops = Stops(request.get("stop") or None)
        if stops:
            body["stop"] = stops.apart_from(cut.healed.forced)
    if request.get("echo"):
        body["echo"] = False
    seen = {field: request[field] for field in _READ if field in request}
    return TextAnswer(
        index.vocabulary,
        {**seen, "n": several},
        Call(body, prompt, cut.healed, most, number * several),
        counts=short and cut.whole and not native,
    )


def _without_specials(request: Message, forced: str, vocabulary: Vocabulary) -> Message:
    """A bias against special tokens that a grammar takes for the forced text, by their spelling.

    A `<|im_start|>` would do for a forced `<`, and has no text in the answer. Those that end a text
    cannot come before it is complete.
    """
    bias = request.get("logit_bias") or {}
    alike = [
        id
        for id, text in vocabulary.special.items()
        if text and id not in vocabulary.end_ids
        if text.startswith(forced) or forced.startswith(text)
    ]
    if not alike or not isinstance(bias, Mapping) or request.get("logit_bias_type") == "tokens":
        return {}
    return {"logit_bias": {**bias, **{str(id): -100 for id in alike}}}


#: What is read of a request to write its answer.
_READ = ("stream", "stream_options", "echo", "stop")
