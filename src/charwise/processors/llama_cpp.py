"""Token healing in llama-cpp-python: a logits processor, and completions in one call.

    response = heal_completion(llama, "for i in rang", max_tokens=16)

or, in calls of your own:

    index = index_of(llama)
    kept, forced = healing.cut("for i in rang", index)
    processor = HealingLogitsProcessor(index, forced, prompt_length=len(kept))
    llama.create_completion(kept, logits_processor=Processors([processor]))

Two traps of llama-cpp-python 0.3: with a `logit_bias`, `create_completion` drops all processors of
a `LogitsProcessorList` (not of `Processors`); and what a processor raises is printed and ignored
(`heal_completion` raises it). Not handled: draft models, whose guesses a processor cannot tell
from what was generated.
"""

from __future__ import annotations

import inspect
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from charwise.errors import ContextLengthError, HealingError, SettingError, check_count, shown
from charwise.healing import Rule
from charwise.processors.decision import Decisions
from charwise.processors.new_text import Continuation, heal_middle, heal_prompt
from charwise.tokens.canonical import to_bytes
from charwise.tokens.gguf import read_gguf
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompt_parts import Prompt, is_text

Ids = NDArray[np.int32]
Scores = NDArray[np.float32]
Processor = Callable[[Ids, Scores], Scores]

#: Arguments of `Llama.generate` that are made here, or mean something else here.
_OURS = {"tokens", "reset", "temp", "logits_processor"}


class HealingLogitsProcessor:
    """Lets llama.cpp write only what reproduces the forced text first.

    Args:
        index: of the model's vocabulary; `index_of(llama)`.
        forced: the bytes that the prompt gave back, as `healing.cut` returns them.
        prompt_length: how many ids are kept of the prompt.

    Put it last in the list of `Processors`. It writes −inf into the scores that it is given and
    returns them; once the text is reproduced a call is one comparison. It keeps no state.

    Raises:
        HealingError: a forced text that the vocabulary cannot spell.
        SettingError: a `forced` that is not bytes, or a negative `prompt_length`.

    >>> from charwise import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"s", b"weep", b"sw", b"a"])
    >>> process = HealingLogitsProcessor(SortedVocabulary(vocabulary), b"sw", prompt_length=1)
    >>> process(np.array([3], np.int32), np.zeros(4, np.float32))
    array([  0., -inf,   0., -inf], dtype=float32)
    >>> process(np.array([3, 0], np.int32), np.zeros(4, np.float32))
    array([-inf,   0., -inf, -inf], dtype=float32)
    """

    def __init__(self, index: SortedVocabulary, forced: bytes, prompt_length: int) -> None:
        self.decisions = Decisions(index)
        self.decisions.check(forced)
        if prompt_length is not None:
            check_count("prompt_length", prompt_length, 0)
        self.forced = forced
        self.prompt_length = prompt_length

    def __call__(self, input_ids: Ids, scores: Scores) -> Scores:
        """Mask the scores `[width]` of the next token after `input_ids` `[n]`, in place."""
        generated = len(input_ids) - self.prompt_length
        if generated < 0:
            raise SettingError(
                f"{len(input_ids)} ids, but a prompt_length of {self.prompt_length}: it must be "
                "the length of the prompt ids that llama.cpp was given."
            )
        if generated < len(self.forced):
            ids = input_ids[self.prompt_length :].tolist()
            self.decisions.mask_(torch.from_numpy(scores), self.forced, ids)
        return scores


class Processors(list[Processor]):
    """A `LogitsProcessorList` that keeps its processors when there is a `logit_bias`.

    `create_completion` calls `extend` then, and goes on with what that returns.

    >>> kept = Processors([max]).extend([min])
    >>> len(kept)
    2
    """

    def extend(self, more: Iterable[Processor]) -> Processors:  # type: ignore[override]
        """A new list with these at the end."""
        return Processors([*self, *more])


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
    **sampling: Any,
) -> Any:
    """`llama.create_completion` with the end of the prompt healed.

    Args:
        llama: a `llama_cpp.Llama`, whose vocabulary is read once from its file.
        prompt: text, bytes, or a list of texts and token ids, as for `healing.cut`. One that holds
            the model's whole template of fill-in-the-middle is healed where its prefix ends.
        suffix: what comes after the completion: the prompt, a text or bytes, is then the prefix.
        rule: where to cut, as for `healing.cut`; "off" does not heal.
        max_tokens: from where the prompt is reproduced: a token that goes beyond the prompt's end
            is the first. None or 0 for all that the context holds.
        stop: strings that end the new text. Matches in what was forced do not count.
        echo: begin the text with the prompt.
        stream: return an iterator of chunks; what was forced is in none of them.
        logit_bias, logits_processor: they run before the mask, which has the last word.
        index: of the vocabulary, by default `index_of(llama)`.
        **sampling: top_k, top_p, min_p, grammar, … as for `Llama.generate`.

    Returns:
        What `create_completion` returns: a dict in OpenAI's form, or an iterator of them. Bytes
        that are not UTF-8 become U+FFFD, and a last character that is not complete is dropped.
        `prompt_tokens` are those of the whole prompt, `completion_tokens` those that `max_tokens`
        counts.

    Raises:
        HealingError: nothing can reproduce the prompt's end, since something else forbids it.
        SettingError: an unknown argument, a draft model, or a grammar where something is forced.
        ContextLengthError: a prompt that fills the context.
        TemplateError: a suffix, for a model that is not known to fill in the middle.

    >>> from llama_cpp import Llama  # doctest: +SKIP
    >>> llama = Llama("model.gguf", n_ctx=512, verbose=False)  # doctest: +SKIP
    >>> response = heal_completion(llama, "for i in rang", max_tokens=4)  # doctest: +SKIP
    >>> response["choices"][0]["text"]  # doctest: +SKIP
    'e(10):'
    """
    _check_arguments(llama, sampling, max_tokens)
    index = index_of(llama) if index is None else index
    request = _request(llama, prompt, suffix, index, rule, max_tokens, stop, echo)
    if sampling.get("grammar") is not None and request.new.left:
        raise SettingError(
            "a grammar is about the new text, and would forbid what was given back of the prompt, "
            f"{request.new.left!r}: llama.cpp ends the process then. Use rule='off' with a grammar."
        )
    guard = _Guard(
        [
            *([_bias(logit_bias, llama.n_vocab())] if logit_bias else []),
            *(logits_processor or ()),
            HealingLogitsProcessor(index, request.new.left, len(request.kept)),
        ]
    )
    if seed is not None:
        llama.set_seed(seed)
    tokens = llama.generate(request.kept, temp=temperature, logits_processor=[guard], **sampling)
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

    kept: list[int]
    new: Continuation
    given_back: int  # tokens
    room: int  # tokens that the context still holds
    ends: frozenset[int]
    echo: str


class _Guard:
    """Several processors as one, which keeps what they raise: llama-cpp-python ignores it."""

    def __init__(self, processors: Sequence[Processor]) -> None:
        self.processors = processors
        self.error: Exception | None = None

    def __call__(self, input_ids: Ids, scores: Scores) -> Scores:
        try:
            for process in self.processors[:-1]:
                scores[:] = process(input_ids, scores)
            scores = self.processors[-1](input_ids, scores)
            if len(self.processors) > 1 and np.isneginf(scores).all():
                raise HealingError(
                    "every token that may come next has the score −inf: another logits processor "
                    "or a logit_bias forbids them all."
                )
        except Exception as error:
            self.error = error
            scores[:] = 0.0  # no sampler survives a row of nothing
        return scores


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
) -> _Request:
    """Cut the prompt, if it is this model's and leaves room in the context."""
    vocabulary = index.vocabulary
    if vocabulary.width != llama.n_vocab():
        raise SettingError(
            f"the index has {vocabulary.width} ids, and the model {llama.n_vocab()}: it belongs to "
            "another model."
        )
    if suffix is None:
        kept, forced, given_back = heal_prompt(prompt, index, rule)
    elif is_text(prompt):
        most = llama.n_ctx() - min(max_tokens or 16, llama.n_ctx() // 2)
        kept, forced, given_back = heal_middle(to_bytes(prompt), suffix, index, rule, most=most)
    else:
        raise SettingError("with a suffix the prompt is a text: what comes before the middle.")
    length = len(kept) + given_back
    if length >= llama.n_ctx():
        raise ContextLengthError(
            f"the prompt has {length} tokens, and the context {llama.n_ctx()}: there is no room "
            "for another. Make the Llama with a larger n_ctx, or shorten the prompt."
        )
    left = llama.n_ctx() - length
    most = min(max_tokens, left) if max_tokens else left
    before = vocabulary.decode(kept[-3:])
    whole = to_bytes(prompt) if is_text(prompt) else vocabulary.decode(kept) + forced
    return _Request(
        kept,
        Continuation(vocabulary, forced, before=before, stop=stop, max_tokens=most),
        given_back,
        llama.n_ctx() - len(kept),
        frozenset(vocabulary.end_ids),
        whole.decode("utf-8", "replace") if echo else "",
    )


def _bias(biases: Mapping[int, float], width: int) -> Processor:
    ids = np.array([int(id) for id in biases])  # strings in OpenAI's JSON
    values = np.array([float(value) for value in biases.values()], dtype=np.float32)
    if not ((ids >= 0) & (ids < width)).all():
        raise SettingError(f"logit_bias has ids beyond the vocabulary, whose width is {width}.")

    def add(input_ids: Ids, scores: Scores) -> Scores:
        scores[ids] += values
        return scores

    return add


def _chunks(
    llama: Any, tokens: Iterator[int], request: _Request, guard: _Guard
) -> Iterator[dict[str, Any]]:
    """The completion in OpenAI's streaming form; the last chunk has the reason why it ended."""
    new = request.new
    top = {
        "id": f"cmpl-{uuid.uuid4()}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": llama.model_path,
    }

    def chunk(text: str, reason: str | None) -> dict[str, Any]:
        choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": reason}
        return {**top, "choices": [choice]}

    if request.echo:
        yield chunk(request.echo, None)
    reason = "length"
    for token in tokens:
        if guard.error is not None:
            raise guard.error
        if token in request.ends and not new.left:
            reason = "stop"
            break
        new.add([token])
        text = new.take()
        if text:
            yield chunk(text, None)
        if new.stopped is not None:
            reason = "stop"
        if new.ended or new.tokens >= request.room:
            break
    else:  # a stopping criterion
        reason = "stop"
    yield chunk(new.take(final=True), reason)


def _whole(chunks: Iterator[dict[str, Any]], request: _Request) -> dict[str, Any]:
    """All chunks as one response, with the usage."""
    parts = list(chunks)
    choice = parts[-1]["choices"][0]
    choice["text"] = "".join(part["choices"][0]["text"] for part in parts)
    prompt = len(request.kept) + request.given_back
    completion = request.new.counted
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    return {**parts[-1], "usage": usage}
