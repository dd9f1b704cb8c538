"""Token healing in llama-cpp-python: completions in one call, and the logits processor they use.

A grammar (`HealedPrompt.gbnf`) would force the same text. But llama.cpp ends the process where
other processors forbid all that a grammar allows, and a grammar cannot force a part of a character.
"""

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from charwise.api.writer import choice, head, usage
from charwise.errors import LimitError, SettingError, check_count
from charwise.healing.continuation import Bounds, Continuation
from charwise.healing.fim import Side, Template, end_ids, hold_end_, request
from charwise.healing.forced import Rule, allowed_next
from charwise.healing.mask import Mask
from charwise.healing.prompt import heal_prompt
from charwise.tokens.canonical import to_bytes
from charwise.tokens.gguf import read_gguf
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Prompt, is_text
from charwise.tokens.stops import StopStrings

Ids = NDArray[np.int32]
Scores = NDArray[np.float32]


def heal_completion(
    llama: Any,
    prompt: Prompt,
    suffix: str | bytes | None = None,
    *,
    rule: Rule = "auto",
    max_tokens: int | None = 16,
    temperature: float = 0.8,
    stop: StopStrings = None,
    stream: bool = False,
    seed: int | None = None,
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
        rule: where to cut, as for `healing.cut`; "off" does not heal, nor the start of a suffix.
        max_tokens: from where the prompt is reproduced: a token that goes beyond the prompt's end
            is the first. None or 0 for all that the context holds.
        stop: strings that end the new text. Matches in what was forced do not count.
        stream: return an iterator of chunks; what was forced is in none of them.
        template: the model's sentinels, where its special tokens do not show them; for a suffix.
        **sampling: top_k, top_p, min_p, grammar, … as for `Llama.generate`.

    Returns:
        What `create_completion` returns: a dict in OpenAI's form, or an iterator of them. Bytes
        that are not UTF-8 become U+FFFD, and a last character that is not complete is dropped.
        `prompt_tokens` are those of the whole prompt, `completion_tokens` those that `max_tokens`
        counts.

    Raises:
        VocabularyError: what is no prompt, or has no tokens.
        SettingError: a draft model; a grammar where something is forced; a suffix, for a model
            that is not known to fill in the middle.
        LimitError: a prompt that fills the context.
    """
    if max_tokens is not None:
        check_count("max_tokens", max_tokens, 0)
    if llama.draft_model is not None:
        raise SettingError(
            "this Llama has a draft_model. With one, logits processors see guesses as if they had "
            "been generated, and cannot heal: make a Llama without it."
        )
    index = index_of(llama)
    if suffix is None:
        healed = heal_prompt(prompt, index, rule)
    elif is_text(prompt):
        template = Template.of(index.vocabulary) if template is None else template
        most = llama.n_ctx() - min(max_tokens or 16, llama.n_ctx() // 2)
        side: Side = "off" if rule == "off" else "auto"
        healed = request(
            to_bytes(prompt), suffix, template, index, left=rule, right=side, most=most
        )
    else:
        raise SettingError("with a suffix the prompt is a text: what comes before the middle.")
    kept, forced, ending = healed.kept, healed.forced, healed.ending
    if sampling.get("grammar") is not None and (forced or ending):
        raise SettingError(
            "a grammar is about the new text, and would forbid the forced end of the prompt, "
            f"{forced!r}, or of the suffix, {ending!r}: llama.cpp ends the process "
            "then. Use rule='off' with a grammar."
        )
    tokens = len(kept) + healed.removed_tokens
    room = llama.n_ctx() - tokens
    if room <= 0:
        raise LimitError(
            f"the prompt has {tokens} tokens, and the context {llama.n_ctx()}: there is no room "
            "for another. Make the Llama with a larger n_ctx, or shorten the prompt."
        )
    ends = end_ids(index.vocabulary)
    most = min(max_tokens, room) if max_tokens else room
    new = Continuation(index.vocabulary, healed, Bounds(stop, max_tokens=most, ends=ends))
    if seed is not None:
        llama.set_seed(seed)
    mask = HealingLogitsProcessor(index, forced, len(kept), ending)
    # `reset` is named so that nobody else can: what llama.cpp read before would come first.
    ids = llama.generate(kept, temp=temperature, reset=True, logits_processor=[mask], **sampling)
    top = head(llama.model_path)

    def chunks() -> Iterator[dict[str, Any]]:
        """OpenAI's streaming form; the last chunk has the reason why the text ended."""
        for id in ids:
            new.add([id])
            if text := new.take():
                yield top | {"choices": [choice(0, text)]}
            if new.ended or new.tokens >= llama.n_ctx() - len(kept):  # the context is full
                reason = "stop" if new.closed or new.stopped is not None else "length"
                break
        else:  # a stopping criterion
            reason = "stop"
        yield top | {"choices": [choice(0, new.take(final=True), reason)]}

    if stream:
        return chunks()
    parts = list(chunks())
    last = parts[-1]["choices"][0]
    last["text"] = "".join(part["choices"][0]["text"] for part in parts)
    return parts[-1] | {"usage": usage(tokens, new.counted)}


_indices: WeakKeyDictionary[Any, SortedVocabulary] = WeakKeyDictionary()


def index_of(llama: Any) -> SortedVocabulary:
    """The index of the vocabulary of a `llama_cpp.Llama`, read from its file and kept with it."""
    if llama not in _indices:
        _indices[llama] = SortedVocabulary(read_gguf(llama.model_path))
    return _indices[llama]


class HealingLogitsProcessor:
    """Lets llama.cpp first write the forced text only; a middle ends only after `ending`.

    Put it last in the list of processors. It writes −inf into the scores that it is given and
    returns them; once the text is reproduced a call is one comparison. It keeps no state.
    """

    def __init__(
        self, index: SortedVocabulary, forced: bytes, prompt_length: int, ending: bytes = b""
    ) -> None:
        self.mask = Mask(index)
        self.mask.check(forced)
        self.forced, self.prompt_length, self.ending = forced, prompt_length, ending

    def __call__(self, input_ids: Ids, scores: Scores) -> Scores:
        """Mask the scores `[width]` of the next token after `input_ids` `[n]`, in place."""
        if len(input_ids) >= self.prompt_length + len(self.forced) and not self.ending:
            return scores
        if len(input_ids) < self.prompt_length:
            raise SettingError(
                f"{len(input_ids)} ids, but a prompt_length of {self.prompt_length}: it must be "
                "the length of the prompt ids that llama.cpp was given."
            )
        generated = input_ids[self.prompt_length :].tolist()
        if rest := self.mask.remaining(self.forced, generated):
            allowed = allowed_next(rest, self.mask.index)
            allowed_scores = scores[allowed]
            scores.fill(-np.inf)
            scores[allowed] = allowed_scores
        hold_end_(scores, self.forced, self.ending, generated, self.mask.index)
        return scores
