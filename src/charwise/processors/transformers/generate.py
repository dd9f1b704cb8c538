"""`heal_generate`: transformers' `generate`, from texts to what comes after them.

Cuts every prompt by the healing rule, pads to the left, lets `HealingLogitsProcessor` reproduce
what was cut off (or chooses, exactly, the tokens that do), and returns only the bytes beyond the
prompt. Not handled: encoder-decoder
models, whose prompt is not continued, and prompts given as embeddings.
"""

from __future__ import annotations

import codecs
import copy
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from charwise.errors import ContextLengthError, HealingError, SettingError, check_count
from charwise.healing import Cut, Rule, cut, prompt_ids
from charwise.processors.transformers.exact import Begun, begin, sampling_of
from charwise.processors.transformers.logits_processor import HealingLogitsProcessor
from charwise.template import cut_written, with_sentinels
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompt_parts import Prompt, is_text, parts_of
from charwise.tokens.stops import Stops
from charwise.tokens.vocabulary import Vocabulary

#: How many tokens `generate` writes when nobody says how many.
DEFAULT_NEW_TOKENS = 20


def heal_generate(
    model: Any,
    tokenizer: Any,
    prompts: Prompt | Sequence[Prompt],
    *,
    rule: Rule = "auto",
    how: Literal["mask", "exact"] = "mask",
    max_new_bytes: int | None = None,
    **generate_kwargs: Any,
) -> list[str]:
    """What the model writes after each prompt, with the prompts' ends healed.

    Args:
        model: any causal language model of transformers.
        tokenizer: its fast tokenizer, whose index is made once, or a `SortedVocabulary`.
        prompts: one prompt, or a list of them: "a", b"a" and [id, "a"] are one, ["a", "b"] is
            two. Text and bytes get the start token and the leading space that the tokenizer would
            give them; a list of texts and token ids is taken as it is. One that holds the
            model's whole template of fill-in-the-middle is healed where its prefix ends.
        rule: where to cut, as for `healing.cut`; "off" does not heal.
        how: "mask" lets `generate` write, at each step, only what can still reproduce the prompt's
            end. "exact" conditions on it (`charwise.boundary`): the token strings that carry on
            over the prompt's end are weighed whole, all but a thousandth of the mass; one is
            drawn, or without `do_sample` the best one taken, and `generate` goes on from it. What
            is drawn so at temperature 1 with top_k=0 has the model's own probability given the
            prompt's characters; temperature, top_k (50 unless you say), top_p and min_p treat the
            token strings as the tokens of one step. Processors, penalties and an assistant count
            from there on. No beams.
        max_new_bytes: stop after so many bytes beyond the prompt.
        **generate_kwargs: for `model.generate`. `max_new_tokens` counts tokens from where the
            prompt is reproduced: one that goes beyond the prompt's end is the first. A text ends
            before a match of `stop_strings` that begins beyond the prompt. Your
            `logits_processor`s run before the mask, so that it has the last word; except
            `…Warper`s, which truncate: like those that `generate` makes of top_k, top_p and so
            on they run after it, and choose among the tokens that are allowed. With an
            `assistant_model` of another vocabulary give its `assistant_tokenizer`.

    A batch ends where its longest row fills the model's window (`max_position_embeddings`).

    Returns:
        `num_return_sequences` texts for each prompt. Nothing of a prompt is repeated or lost;
        special tokens are left out, bytes that are not UTF-8 become U+FFFD, and a last character
        that is not complete is dropped. If a prompt of bytes ends inside a character, the
        completion starts with that character.

    Raises:
        HealingError: nothing can reproduce a prompt's end, since other processors forbid it, or
            ("exact") since the model gives it no probability, or spreads it over more token
            strings than 512 contexts show.
        TokenizationError: what is no prompt, or has no tokens.
        SettingError: an argument that makes no sense here.
        VocabularyError: a tokenizer that charwise cannot read.
        ContextLengthError: a prompt that fills the model's window.

    >>> from charwise.models import EMBEDDED
    >>> from transformers import AutoModelForCausalLM, AutoTokenizer
    >>> model = AutoModelForCausalLM.from_pretrained(EMBEDDED)
    >>> tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    >>> heal_generate(model, tokenizer, "for i in rang", max_new_bytes=1, do_sample=False)
    ['e']
    >>> heal_generate(model, tokenizer, "return isinst", how="exact", max_new_bytes=4)
    ['ance']
    """
    _check_arguments(model, generate_kwargs, max_new_bytes, how)
    index = index_of(tokenizer, model)
    batch = _as_batch(prompts)
    if not batch:
        return []
    window = window_of(model)
    cuts = [_cut(prompt, index, rule, window) for prompt in batch]
    filler = _filler(index.vocabulary, model)
    begun = Begun([[] for _ in cuts], None)
    if how == "exact":
        sampling, copies = sampling_of(model, generate_kwargs)
        begun = begin(model, index, cuts, filler, sampling, copies, window)
        cuts = [each for each in cuts for _ in range(copies)]
    rows = [[*kept, *new] for (kept, _), new in zip(cuts, begun.tokens, strict=True)]
    length = max(map(len, rows))
    limits = _Limits(
        index.vocabulary,
        [forced for _, forced in cuts],
        begun.tokens,
        length,
        _new_tokens(model, generate_kwargs, max_new_bytes),
        max_new_bytes,
        Stops(generate_kwargs.pop("stop_strings", None)),
        window,
    )
    mask: LogitsProcessor | None = None
    if how == "mask":
        mask = HealingLogitsProcessor(index, limits.forced, length)
    if generate_kwargs.get("assistant_tokenizer") is not None:
        generate_kwargs["tokenizer"] = _own_tokenizer(tokenizer)
        if mask is not None:
            mask = _OwnRows(mask, cuts[0].kept, model.config.get_text_config().vocab_size)
    settings, ends, filler = _settings(model, generate_kwargs, limits, mask)
    if how == "exact" and _reads_cache(settings):
        settings["past_key_values"] = begun.cache
    ids = [[filler] * (length - len(row)) + row for row in rows]
    seen = [[0] * (length - len(row)) + [1] * len(row) for row in rows]
    if limits.all_ended():
        written: list[list[int]] = [[] for _ in rows]
    else:
        output = model.generate(
            input_ids=torch.tensor(ids, device=model.device),  # [rows, length]
            attention_mask=torch.tensor(seen, device=model.device),
            **settings,
        )
        written = getattr(output, "sequences", output)[:, length:].tolist()
    copies = len(written) // len(rows)
    return [
        _text(cuts[row // copies], limits.new_bytes(_until(ids, ends), row // copies), index)
        for row, ids in enumerate(written)
    ]


_indices: WeakKeyDictionary[Any, dict[tuple[Any, ...], SortedVocabulary]] = WeakKeyDictionary()


def index_of(tokenizer: Any, model: Any = None) -> SortedVocabulary:
    """The index of a tokenizer for a model; kept as long as the tokenizer lives.

    Raises:
        VocabularyError: a tokenizer that charwise cannot read.

    >>> from charwise.models import EMBEDDED
    >>> from transformers import AutoTokenizer
    >>> tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    >>> index_of(tokenizer) is index_of(tokenizer)
    True
    """
    if isinstance(tokenizer, SortedVocabulary):
        return tokenizer
    if not hasattr(tokenizer, "backend_tokenizer"):
        return SortedVocabulary(Vocabulary.from_transformers(tokenizer))  # which says what it is
    generation = getattr(model, "generation_config", None)
    width = model.config.get_text_config().vocab_size if model is not None else None
    key = (len(tokenizer), width, tuple(_as_list(getattr(generation, "eos_token_id", None))))
    known = _indices.setdefault(tokenizer, {})
    if key not in known:
        vocabulary = Vocabulary.from_transformers(tokenizer, width, generation_config=generation)
        known[key] = SortedVocabulary(vocabulary)
    return known[key]


@dataclass
class _Limits:
    """When a row has ended, and which of its bytes are new: the same answer for both uses."""

    vocabulary: Vocabulary
    forced: list[bytes]
    begun: list[list[int]]  # tokens of each row that are in the prompt ids already, and count
    prompt_length: int
    max_new_tokens: int | None
    max_new_bytes: int | None
    stops: Stops
    window: int | None

    def spent(self, ids: Sequence[int], forced: bytes) -> int | None:
        """How many tokens lie within the forced text, and do not count; None until it is whole."""
        at = 0
        for n, id in enumerate(ids):
            end = at + len(self.vocabulary.tokens[id] or b"")
            if at == len(forced) or end > len(forced):
                return n
            at = end
        return len(ids) if at == len(forced) else None

    def all_ended(self) -> bool:
        """Whether nothing is left to generate: what was begun is enough, or fills the window."""
        if self.window is not None and self.prompt_length >= self.window:
            return True
        return all(self.ended([], prompt) for prompt in range(len(self.forced)))

    def ended(self, ids: Sequence[int], prompt: int) -> bool:
        """Whether the tokens generated for a prompt are enough."""
        ids = [*self.begun[prompt], *ids]
        forced = self.forced[prompt]
        spent = self.spent(ids, forced)
        if spent is None:
            return False
        if self.max_new_tokens is not None and len(ids) - spent >= self.max_new_tokens:
            return True
        if self.max_new_bytes is None and not self.stops:
            return False
        new = self.vocabulary.decode(ids)[len(forced) :]
        enough = self.max_new_bytes is not None and len(new) >= self.max_new_bytes
        return enough or self.stops.first(new) is not None

    def new_bytes(self, ids: Sequence[int], prompt: int) -> bytes:
        """The bytes that these tokens add to the prompt, within the limits."""
        ids = [*self.begun[prompt], *ids]
        forced = self.forced[prompt]
        spent = self.spent(ids, forced)
        if spent is not None and self.max_new_tokens is not None:
            ids = ids[: spent + self.max_new_tokens]
        text = self.vocabulary.decode(ids)
        if not (text.startswith(forced) or forced.startswith(text)):
            raise HealingError(
                f"a returned sequence starts with {text[: len(forced)]!r} instead of {forced!r}: "
                "it was not masked, or there are fewer ways to go on than beams to return. "
                "Lower num_return_sequences."
            )
        new = text[len(forced) :]
        match = self.stops.first(new)
        return new[: None if match is None else match[0]][: self.max_new_bytes]


class _Stop(StoppingCriteria):  # type: ignore[misc]
    """Ends each row by its limits."""

    def __init__(self, limits: _Limits) -> None:
        self.limits = limits

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        limits = self.limits
        rows, length = input_ids.shape
        generated = length - limits.prompt_length
        only_tokens = limits.max_new_bytes is None and not limits.stops
        if only_tokens and (limits.max_new_tokens is None or generated < limits.max_new_tokens):
            return torch.zeros(rows, dtype=torch.bool, device=input_ids.device)
        copies = rows // len(limits.forced)
        new = input_ids[:, limits.prompt_length :].tolist()
        ended = [limits.ended(ids, row // copies) for row, ids in enumerate(new)]
        return torch.tensor(ended, device=input_ids.device)


class _OwnRows(LogitsProcessor):  # type: ignore[misc]
    """Masks the model's own rows, and leaves those of an assistant with other tokens alone.

    `generate` gives both the same processors, and does not say for whom it calls them.
    """

    def __init__(self, mask: LogitsProcessor, prompt_ids: list[int], width: int) -> None:
        self.mask = mask
        self.prompt_ids = prompt_ids
        self.width = width

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        own = input_ids[0, : len(self.prompt_ids)].tolist() == self.prompt_ids
        return self.mask(input_ids, scores) if own and scores.shape[1] == self.width else scores


def _check_arguments(
    model: Any, kwargs: dict[str, Any], max_new_bytes: int | None, how: str
) -> None:
    if how not in ("mask", "exact"):
        raise SettingError(f"how is {how!r}: use 'mask' or 'exact'.")
    if not hasattr(model, "generate") or not hasattr(model, "config"):
        raise SettingError(
            f"{type(model).__name__} is no model of transformers: give a causal language model."
        )
    for name in ("inputs", "input_ids", "attention_mask", "inputs_embeds", "position_ids"):
        if name in kwargs:
            raise SettingError(f"{name} is made from the prompts here: leave it out.")
    if kwargs.get("token_healing"):
        raise SettingError("token_healing=True would heal a second time: leave it out.")
    if max_new_bytes is not None:
        check_count("max_new_bytes", max_new_bytes, 1)
    if getattr(model.config, "is_encoder_decoder", False):
        raise SettingError(
            f"{type(model).__name__} is an encoder-decoder model: it does not continue its prompt, "
            "so there is nothing to heal. Use a causal language model."
        )


def window_of(model: Any) -> int | None:
    """How many tokens the model's positions reach; None if it does not say."""
    window = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return None if window is None or window < 1 else int(window)


def _cut(prompt: Prompt, index: SortedVocabulary, rule: Rule, window: int | None) -> Cut:
    """The cut of a prompt that leaves room in the window."""
    if isinstance(prompt, str):
        prompt = with_sentinels(prompt, index.vocabulary)
    ids = prompt_ids(prompt, index.vocabulary)
    if window is not None and len(ids) >= window:
        raise ContextLengthError(
            f"a prompt has {len(ids)} tokens, and the model's window is {window}: there is no "
            "room for another. Shorten the prompt from its start."
        )
    return cut_written(ids, index, rule) or cut(ids, index, rule)


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Any]:
    """One prompt or many → a list of prompts. A list with a token id in it is one prompt."""
    if is_text(prompts):
        return [prompts]
    if isinstance(prompts, Mapping | Set) or not isinstance(prompts, Iterable):
        return parts_of(prompts)  # which says that it is none
    parts: list[Any] = list(prompts)
    if any(hasattr(part, "__index__") and not getattr(part, "ndim", 0) for part in parts):
        return [parts]
    return parts


def _new_tokens(model: Any, kwargs: dict[str, Any], max_new_bytes: int | None) -> int | None:
    """The caller's max_new_tokens, or else the default; None if something else sets the end."""
    sources = [kwargs.pop("max_new_tokens", None)]
    for config in (kwargs.get("generation_config"), model.generation_config):
        sources.append(getattr(config, "max_new_tokens", None))
    tokens = next((value for value in sources if value is not None), None)
    if tokens is not None:
        check_count("max_new_tokens", tokens, 1)
    if tokens is None and max_new_bytes is None and _max_length(model, kwargs) is None:
        return DEFAULT_NEW_TOKENS
    return tokens


def _max_length(model: Any, kwargs: dict[str, Any]) -> int | None:
    """The caller's bound on prompt and completion together."""
    lengths = [kwargs.get("max_length")]
    for config in (kwargs.get("generation_config"), model.generation_config):
        lengths.append(getattr(config, "max_length", None))
    length = next((value for value in lengths if value is not None), None)
    if length is not None:
        check_count("max_length", length, 1)
    return length


def _own_tokenizer(tokenizer: Any) -> Any:
    if isinstance(tokenizer, SortedVocabulary):
        raise SettingError(
            "an assistant_tokenizer needs the model's own beside it: give heal_generate the "
            "tokenizer instead of its index."
        )
    return tokenizer


def _settings(
    model: Any, given: dict[str, Any], limits: _Limits, mask: LogitsProcessor | None
) -> tuple[dict[str, Any], set[int], int]:
    """The keyword arguments of `generate`, the end tokens and the id to pad with."""
    settings = dict(given)
    processors = list(settings.get("logits_processor") or ())
    if mask is not None:
        names = [type(processor).__name__ for processor in processors]
        first_warper = next((at for at, n in enumerate(names) if n.endswith("Warper")), len(names))
        processors.insert(first_warper, mask)
    settings["logits_processor"] = LogitsProcessorList(processors)
    settings["stopping_criteria"] = StoppingCriteriaList(
        [*(settings.get("stopping_criteria") or ()), _Stop(limits)]
    )
    own = _generation_settings(model, settings, limits)
    if mask is None:
        own["num_return_sequences"] = 1  # each has a row of its own
    if given.get("generation_config") is None:
        settings |= own
    else:  # generate wants either such an object or the arguments
        settings["generation_config"] = copy.deepcopy(given["generation_config"])
        settings["generation_config"].update(**{"max_new_tokens": None, **own})
    filler = own["pad_token_id"]
    return settings, set(_as_list(own["eos_token_id"])), 0 if filler is None else filler


def _reads_cache(settings: dict[str, Any]) -> bool:
    """Whether `generate` may be given a cache of the first tokens: it makes none of its own."""
    config = settings.get("generation_config")
    if any(name.startswith(("assistant", "prompt_lookup")) for name in settings):
        return False
    names = ("cache_implementation", "use_cache", "past_key_values", "prompt_lookup_num_tokens")
    own = (settings.get(name, getattr(config, name, None)) for name in names)
    return all(value is None or value is True for value in own)


def _generation_settings(model: Any, given: dict[str, Any], limits: _Limits) -> dict[str, Any]:
    """What `heal_generate` itself says about the length, the end tokens and the padding."""
    own: dict[str, Any] = {}
    bounds = [limits.max_new_tokens, limits.max_new_bytes]
    new = min((bound for bound in bounds if bound is not None), default=None)
    lengths = [limits.window]
    if new is not None:
        # A byte takes at most one token, so this never ends a row before its own limit does.
        lengths.append(limits.prompt_length + new + max(map(len, limits.forced)))
    if limits.max_new_tokens is None:
        lengths.append(_max_length(model, given))
    length = min((bound for bound in lengths if bound is not None), default=None)
    if length is not None:
        if getattr(model.generation_config, "max_new_tokens", None) is not None:
            own["max_new_tokens"] = length - limits.prompt_length
        else:  # quiet even if the model's own generation config has a max_length
            own["max_length"] = length
    for name, value in (
        ("eos_token_id", list(limits.vocabulary.end_ids) or None),
        ("pad_token_id", _filler(limits.vocabulary, model)),
    ):
        config = getattr(given.get("generation_config"), name, None)
        own[name] = given.get(name, value if config is None else config)
    return own


def _filler(vocabulary: Vocabulary, model: Any) -> int:
    """An id to pad with. The attention mask hides it, so any will do; best one without bytes."""
    known = getattr(model.generation_config, "pad_token_id", None)
    if known is not None:
        return int(known)
    without = (id for id, token in enumerate(vocabulary.tokens) if token is None)
    return next(iter(vocabulary.end_ids), next(without, 0))


def _until(ids: list[int], ends: set[int]) -> list[int]:
    """The ids up to the first end token, and with it."""
    at = next((n for n, id in enumerate(ids) if id in ends), len(ids))
    return ids[: at + 1]


def _text(prompt: Cut, new: bytes, index: SortedVocabulary) -> str:
    """New bytes as text, from the character that the prompt left incomplete, if it did."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    end = index.vocabulary.decode(prompt.kept[-3:]) + prompt.forced
    decoder.decode(end[-3:])  # what is incomplete at the end of it stays in the decoder
    return decoder.decode(new)


def _as_list(value: Any) -> list[Any]:
    """None → [], a single value → [value], anything iterable → its list."""
    if value is None:
        return []
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [int(item) if hasattr(item, "__index__") else item for item in value]
    return [value]
