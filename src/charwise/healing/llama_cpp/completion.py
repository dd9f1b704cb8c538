"""Completions in one call: `heal_completion`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from charwise.api.writer import characters, choice, head, usage
from charwise.errors import LimitError, SettingError, check_count, shown
from charwise.healing import Rule
from charwise.healing.continuation import Bounds, Continuation
from charwise.healing.fim import Template
from charwise.healing.llama_cpp.logits_processor import (
    EndingLogitsProcessor,
    Guard,
    HealingLogitsProcessor,
    Processor,
    bias,
)
from charwise.healing.prompt import HealedPrompt, heal_middle, heal_prompt
from charwise.tokens.canonical import to_bytes
from charwise.tokens.gguf import read_gguf
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Prompt, is_text

#: Arguments of `Llama.generate` that are made here, or mean something else here.
_OURS = {"tokens", "reset", "temp", "logits_processor"}


def heal_completion(
    llama: Any,
    prompt: Prompt,
    suffix: str | bytes | None = None,
    *,
    rule: Rule = "auto",
    max_tokens: int | None = 16,
    temperature: float = 0.8,
    stop: str | Sequence[str] | None = None,
    echo: bool = False,
    stream: bool = False,
    seed: int | None = None,
    logit_bias: Mapping[int, float] | None = None,
    logits_processor: Sequence[Processor] | None = None,
    index: SortedVocabulary | None = None,
    template: Template | None = None,
    **sampling: Any,
) -> Any:
    """`llama.create_completion` with the end of the prompt healed.

    Args:
        llama: a `llama_cpp.Llama`, whose vocabulary is read once from its file.
        prompt: text, bytes, or a list of texts and token ids, as for `healing.cut`. One that holds
            the model's whole template of fill-in-the-middle is healed where its prefix ends.
        suffix: what comes after the completion: the prompt, a text or bytes, is then the prefix.
            Both are healed: the completion ends where it has written the beginning of the suffix
            that left the prompt, and has it no more. If `max_tokens` ends it, it is as it came.
        rule: where to cut, as for `healing.cut`, and a suffix by the same rule, mirrored ("auto"
            if it is a number); "off" does not heal.
        max_tokens: from where the prompt is reproduced: a token that goes beyond the prompt's end
            is the first. None or 0 for all that the context holds.
        stop: strings that end the new text. Matches in what was forced do not count.
        echo: begin the text with the prompt.
        stream: return an iterator of chunks; what was forced is in none of them.
        logit_bias, logits_processor: they run before the mask, which has the last word.
        index: of the vocabulary, by default `index_of(llama)`.
        template: the model's sentinels, where its special tokens do not show them; for a suffix.
        **sampling: top_k, top_p, min_p, grammar, … as for `Llama.generate`.

    Returns:
        What `create_completion` returns: a dict in OpenAI's form, or an iterator of them. Bytes
        that are not UTF-8 become U+FFFD, and a last character that is not complete is dropped.
        `prompt_tokens` are those of the whole prompt, `completion_tokens` those that `max_tokens`
        counts.

    Raises:
        VocabularyError: nothing can reproduce the prompt's end, since something else forbids it.
        SettingError: an unknown argument, a draft model, or a grammar where something is forced.
        LimitError: a prompt that fills the context.
        SettingError: a suffix, for a model that is not known to fill in the middle: how to give
            its sentinels.

    >>> from llama_cpp import Llama  # doctest: +SKIP
    >>> llama = Llama("model.gguf", n_ctx=512, verbose=False)  # doctest: +SKIP
    >>> response = heal_completion(llama, "for i in rang", max_tokens=4)  # doctest: +SKIP
    >>> response["choices"][0]["text"]  # doctest: +SKIP
    'e(10):'
    """
    _check_arguments(llama, sampling, max_tokens)
    index = index_of(llama) if index is None else index
    request = _request(llama, prompt, suffix, index, rule, max_tokens, stop, echo, template)
    kept, forced, _, ending, _ = request.healed
    if sampling.get("grammar") is not None and (forced or ending):
        raise SettingError(
            "a grammar is about the new text, and would forbid what was given back of the prompt, "
            f"{forced!r}, or of the suffix, {ending!r}: llama.cpp ends the process "
            "then. Use rule='off' with a grammar."
        )
    length = len(kept)
    guard = Guard(
        [
            *([bias(logit_bias, llama.n_vocab())] if logit_bias else []),
            *(logits_processor or ()),
            *([EndingLogitsProcessor(index, forced, ending, length)] if ending else []),
            HealingLogitsProcessor(index, forced, length),
        ]
    )
    if seed is not None:
        llama.set_seed(seed)
    tokens = llama.generate(kept, temp=temperature, logits_processor=[guard], **sampling)
    chunks = _chunks(llama, tokens, request, guard)
    return chunks if stream else _whole(chunks, request)


_indices: WeakKeyDictionary[Any, SortedVocabulary] = WeakKeyDictionary()


def index_of(llama: Any) -> SortedVocabulary:
    """The index of the vocabulary of a `llama_cpp.Llama`, read from its file; kept as long as it.

    >>> index_of(llama).vocabulary.encode("Hello")  # doctest: +SKIP
    [15496]
    """
    if llama not in _indices:
        _indices[llama] = SortedVocabulary(read_gguf(llama.model_path))
    return _indices[llama]


class _Request(NamedTuple):
    """A prompt that was cut, and the text that comes after it."""

    healed: HealedPrompt
    new: Continuation
    room: int  # tokens that the context still holds
    ends: frozenset[int]
    echo: str


def _check_arguments(llama: Any, sampling: Mapping[str, Any], max_tokens: int | None) -> None:
    if not hasattr(llama, "generate") or not hasattr(llama, "n_ctx"):
        raise SettingError(f"{type(llama).__name__} is no llama_cpp.Llama.")
    known = set(inspect.signature(llama.generate).parameters) - _OURS
    for name in sampling:
        if name not in known:
            raise SettingError(
                f"heal_completion does not know {shown(name)}. Besides its own arguments it takes "
                f"those of Llama.generate: {', '.join(sorted(known))}."
            )
    if max_tokens is not None:
        check_count("max_tokens", max_tokens, 0)
    if llama.draft_model is not None:
        raise SettingError(
            "this Llama has a draft_model. With one, logits processors see guesses as if they had "
            "been generated, and cannot heal: make a Llama without it."
        )


def _request(
    llama: Any,
    prompt: Prompt,
    suffix: str | bytes | None,
    index: SortedVocabulary,
    rule: Rule,
    max_tokens: int | None,
    stop: str | Sequence[str] | None,
    echo: bool,
    template: Template | None,
) -> _Request:
    """Cut the prompt, if it is this model's and leaves room in the context."""
    vocabulary = index.vocabulary
    if vocabulary.width != llama.n_vocab():
        raise SettingError(
            f"the index has {vocabulary.width} ids, and the model {llama.n_vocab()}: it belongs to "
            "another model."
        )
    if suffix is None:
        healed = heal_prompt(prompt, index, rule)
    elif is_text(prompt):
        most = llama.n_ctx() - min(max_tokens or 16, llama.n_ctx() // 2)
        right: Rule = rule if isinstance(rule, str) else "auto"
        healed = heal_middle(
            to_bytes(prompt), suffix, index, rule, right=right, most=most, template=template
        )
    else:
        raise SettingError("with a suffix the prompt is a text: what comes before the middle.")
    healed = healed._replace(until=b"")  # a middle is left as it came
    length = len(healed.kept) + healed.given_back
    if length >= llama.n_ctx():
        raise LimitError(
            f"the prompt has {length} tokens, and the context {llama.n_ctx()}: there is no room "
            "for another. Make the Llama with a larger n_ctx, or shorten the prompt."
        )
    left = llama.n_ctx() - length
    most = min(max_tokens, left) if max_tokens else left
    decoded = vocabulary.decode(healed.kept) + healed.forced
    whole = to_bytes(prompt) if is_text(prompt) else decoded
    return _Request(
        healed,
        Continuation(vocabulary, healed, Bounds(stop, max_tokens=most)),
        llama.n_ctx() - len(healed.kept),
        frozenset(vocabulary.stop_ids),
        characters(whole) if echo else "",
    )


def _chunks(
    llama: Any, tokens: Iterator[int], request: _Request, guard: Guard
) -> Iterator[dict[str, Any]]:
    """The completion in OpenAI's streaming form; the last chunk has the reason why it ended."""
    new = request.new
    top = head(llama.model_path)
    if request.echo:
        yield top | {"choices": [choice(0, request.echo)]}
    reason = "length"
    for token in tokens:
        if guard.error is not None:
            raise guard.error
        if token in request.ends and not new.left:
            reason = "stop"
            new.close()
            break
        new.add([token])
        text = new.take()
        if text:
            yield top | {"choices": [choice(0, text)]}
        if new.stopped is not None:
            reason = "stop"
        if new.ended or new.tokens >= request.room:
            break
    else:  # a stopping criterion
        reason = "stop"
    yield top | {"choices": [choice(0, new.take(final=True), reason)]}


def _whole(chunks: Iterator[dict[str, Any]], request: _Request) -> dict[str, Any]:
    """All chunks as one response, with the usage."""
    parts = list(chunks)
    last = parts[-1]["choices"][0]
    last["text"] = "".join(part["choices"][0]["text"] for part in parts)
    prompt = len(request.healed.kept) + request.healed.given_back
    return parts[-1] | {"usage": usage(prompt, request.new.counted)}
