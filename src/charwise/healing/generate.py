"""`heal_generate` and `heal_infill`: transformers' `generate`, from texts to texts.

Not handled: encoder-decoder models, and prompts given as embeddings.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any, cast

import torch
from transformers import LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from charwise.errors import LimitError, SettingError, VocabularyError, check_count
from charwise.healing.continuation import Bounds, Continuation
from charwise.healing.fim import Order, Side, Template, end_ids, request
from charwise.healing.forced import HealedPrompt, Rule
from charwise.healing.prompt import heal_prompt
from charwise.healing.transformers import HealingLogitsProcessor, as_list, index_of
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Prompt, is_text, prompts_of
from charwise.tokens.stops import Stops
from charwise.tokens.utf8 import decoder_after
from charwise.tokens.vocabulary import Vocabulary


def heal_generate(
    model: Any,
    tokenizer: Any,
    prompts: Prompt | Sequence[Prompt],
    *,
    rule: Rule = "auto",
    max_new_bytes: int | None = None,
    **generate_kwargs: Any,
) -> list[str]:
    """Return the model's text after each prompt, with the prompts' ends healed.

    Args:
        model: any causal language model of transformers.
        tokenizer: its fast tokenizer, whose index is made once, or a `SortedVocabulary`.
        prompts: one prompt, or a list of them: "a", b"a" and [id, "a"] are one, ["a", "b"] is
            two. Text and bytes get the start token and the leading space that the tokenizer would
            give them; a list of texts and token ids is taken as it is. One that holds the
            model's whole template of fill-in-the-middle is healed where its prefix ends.
        rule: where to cut, as for `healing.cut`; "off" does not heal.
        max_new_bytes: stop after so many bytes beyond the prompt.
        **generate_kwargs: for `model.generate`. `max_new_tokens` counts tokens from where the
            prompt is reproduced: one that goes beyond the prompt's end is the first. A text ends
            before a match of `stop_strings` that begins beyond the prompt. Your
            `logits_processor`s run before the mask, so that it has the last word; except
            `…Warper`s, which truncate: like those that `generate` makes of top_k, top_p and so
            on they run after it, and choose among the tokens that are allowed.

    A batch ends where its longest row fills the model's window (`max_position_embeddings`).

    Returns:
        `num_return_sequences` texts for each prompt. Nothing of a prompt is repeated or lost;
        special tokens are left out, bytes that are not UTF-8 become U+FFFD, and a last character
        that is not complete is dropped. If a prompt of bytes ends inside a character, the
        completion starts with that character.

    Raises:
        VocabularyError: what is no prompt, or has no tokens; a tokenizer that charwise cannot read;
            an end of a prompt that other processors forbid.
        SettingError: an argument that makes no sense here, or no list of prompts.
        LimitError: a prompt that fills the model's window.

    >>> from charwise.models import EMBEDDED
    >>> from transformers import AutoModelForCausalLM, AutoTokenizer
    >>> model = AutoModelForCausalLM.from_pretrained(EMBEDDED)
    >>> tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    >>> heal_generate(model, tokenizer, "for i in rang", max_new_bytes=1, do_sample=False)
    ['e']
    """
    arguments = _as_arguments(model, generate_kwargs)
    if max_new_bytes is not None:
        check_count("max_new_bytes", max_new_bytes, 1)
    index = index_of(tokenizer, model)
    listed = _as_batch(prompts)
    if not listed:
        return []
    window = _window_of(model)
    healed = [heal_prompt(prompt, index, rule) for prompt in listed]
    longest_prompt = max(len(one.kept) + one.removed_tokens for one in healed)
    if longest_prompt >= window:
        raise LimitError(
            f"a prompt has {longest_prompt} tokens, and the model's window is {window}: there is "
            "no room for another. Shorten the prompt from its start."
        )
    length = max(len(one.kept) for one in healed)
    bounds = Bounds(
        Stops(arguments.pop("stop_strings", None)).strings,
        max_tokens=_count("max_new_tokens", arguments, model),
        max_bytes=max_new_bytes,
        ends=_ends(arguments, index.vocabulary),
    )
    longest = _count("max_length", arguments, model)
    if bounds.max_tokens is None and max_new_bytes is None and longest is None:
        bounds = bounds._replace(max_tokens=20)  # as many as `generate` writes by itself
    if bounds.max_tokens is None and longest is not None:
        window = min(window, longest)
    # A byte takes at most one token, so the room never ends a row before its own bounds do.
    new = min(bounds.max_tokens or math.inf, max_new_bytes or math.inf)
    room = min(window - length, new + max(len(one.forced) for one in healed))
    rows = _Batch(index, healed, bounds).generate(model, room, arguments)
    return [new.take() for _, _, new in rows]


def heal_infill(
    model: Any,
    tokenizer: Any,
    prefix: str | bytes | Sequence[str | bytes],
    suffix: str | bytes | Sequence[str | bytes] = "",
    *,
    order: Order | None = None,
    template: Template | None = None,
    left: Rule = "auto",
    right: Side = "auto",
    max_new_tokens: int = 64,
    **generate_kwargs: Any,
) -> list[str]:
    """Return the model's text between two texts, either of which may break off inside a token.

    Args:
        model: a causal language model of transformers that was trained to fill in.
        tokenizer: its fast tokenizer, or a `SortedVocabulary`.
        prefix, suffix: two texts, or two lists of as many; one suffix may follow all prefixes. What
            does not fit the window is cut at the far ends, and a warning says how much that was. A
            sentinel's name in them is text.
        order: "psm" or "spm"; by default PSM where the model knows it.
        template: its sentinels, where the special tokens do not show them.
        left: where to cut, as for `healing.cut`.
        right: "auto" heals the start of the suffix as well; "off" leaves it whole.
        max_new_tokens: of the middle; the model may write one more for each removed byte.
        **generate_kwargs: for `model.generate`.

    Returns:
        `num_return_sequences` middles for each pair, without what is written of prefix and suffix
        again. One that `max_new_tokens` ended is cut where it most probably ends, among the places
        where it may; if there is none, it is returned as far as it came.

    Raises:
        SettingError: a model without sentinels: how to give them; lists of different lengths; an
            argument that makes no sense here.
        VocabularyError: as `heal_generate`.

    >>> from charwise.models import EMBEDDED
    >>> from transformers import AutoModelForCausalLM, AutoTokenizer
    >>> model = AutoModelForCausalLM.from_pretrained(EMBEDDED)
    >>> tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    >>> before = "def flatten(items):\\n    result = []\\n    for item in items:\\n        "
    >>> after = "d(item)\\n    return result\\n"
    >>> heal_infill(model, tokenizer, before + "result.app", after, max_new_tokens=8)
    ['en']
    """
    arguments = _as_arguments(model, generate_kwargs)
    prefixes = [prefix] if isinstance(prefix, str | bytes) else prefix
    suffixes = [suffix] * len(prefixes) if isinstance(suffix, str | bytes) else suffix
    if len(prefixes) != len(suffixes):
        raise SettingError(
            f"there are {len(prefixes)} prefixes and {len(suffixes)} suffixes: give as many."
        )
    index = index_of(tokenizer, model)
    template = Template.of(index.vocabulary) if template is None else template
    check_count("max_new_tokens", max_new_tokens, 1)
    window = _window_of(model)
    most = None if window == math.inf else int(window - min(max_new_tokens + 16, window // 2))
    healed = [
        request(before, after, template, index, order=order, left=left, right=right, most=most)
        for before, after in zip(prefixes, suffixes, strict=True)
    ]
    if not healed:
        return []
    before, after = sum(one.prefix_cut for one in healed), sum(one.suffix_cut for one in healed)
    if before or after:  # the answer, text alone, does not show it
        warnings.warn(
            f"the window is too small: {before} bytes at the start of the prefix and {after} at "
            "the end of the suffix were left out. Give shorter texts, or a smaller max_new_tokens.",
            stacklevel=2,
        )
    bounds = Bounds(ends=_ends(arguments, index.vocabulary))
    batch = _Batch(index, healed, bounds)
    both = max(len(one.forced) + len(one.ending) for one in healed)
    room = min(max_new_tokens + both, window - batch.prompt_length)
    texts = []
    for one, ids, new in batch.generate(model, room, arguments):
        middle = new.raw if new.closed else _likeliest(model, one, ids, new.raw, index)
        texts.append(decoder_after(one.before).decode(middle))
    return texts


class _Batch(StoppingCriteria):  # type: ignore[misc]
    """Healed prompts in one `generate`: reads their rows, and ends each where its text ends."""

    def __init__(
        self, index: SortedVocabulary, healed: Sequence[HealedPrompt], bounds: Bounds
    ) -> None:
        self.index, self.healed, self.bounds = index, healed, bounds
        self.prompt_length = max(len(one.kept) for one in healed)
        self._stops = Stops(bounds.stop)

    def generate(
        self, model: Any, room: float, arguments: dict[str, Any]
    ) -> list[tuple[HealedPrompt, list[int], Continuation]]:
        """Return each prompt, or each copy of it, the ids after it (at most `room`), their text."""
        length = self.prompt_length
        forced, endings = zip(*((one.forced, one.ending) for one in self.healed), strict=True)
        mask = HealingLogitsProcessor(self.index, forced, length, endings)
        processors = list(arguments.pop("logits_processor", None) or ())
        names = [type(processor).__name__ for processor in processors]
        at = next((n for n, name in enumerate(names) if name.endswith("Warper")), len(names))
        # The attention mask hides it, so any id will do; without bytes it adds nothing to a text.
        vocabulary = self.index.vocabulary
        pad_id = next(iter([*vocabulary.end_ids, *vocabulary.uncounted.tolist()]), 0)
        padding = [length - len(one.kept) for one in self.healed]
        ids = [[pad_id] * n + one.kept for n, one in zip(padding, self.healed, strict=True)]
        attention = [[0] * n + [1] * (length - n) for n in padding]
        criteria = [*(arguments.pop("stopping_criteria", None) or ()), self]
        settings = {
            "pad_token_id": pad_id,
            "eos_token_id": list(self.bounds.ends) or None,
            "max_new_tokens": int(room),
            "logits_processor": LogitsProcessorList([*processors[:at], mask, *processors[at:]]),
            "stopping_criteria": StoppingCriteriaList(criteria),
            **arguments,
        }
        output = model.generate(
            input_ids=torch.tensor(ids, device=model.device),
            attention_mask=torch.tensor(attention, device=model.device),
            **settings,
        )
        rows = getattr(output, "sequences", output)[:, length:].tolist()
        copies = len(rows) // len(self.healed)
        prompts = [self.healed[row // copies] for row in range(len(rows))]
        return [(one, ids, self._parse(ids, one)) for one, ids in zip(prompts, rows, strict=True)]

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        rows, length = input_ids.shape
        most = self.bounds.max_tokens
        by_tokens = self.bounds.max_bytes is None and not self._stops
        if by_tokens and (most is None or length - self.prompt_length < most):
            return torch.zeros(rows, dtype=torch.bool, device=input_ids.device)
        copies = rows // len(self.healed)
        new = input_ids[:, self.prompt_length :].tolist()
        ended = [self._ended(ids, self.healed[row // copies]) for row, ids in enumerate(new)]
        return torch.tensor(ended, device=input_ids.device)

    def _parse(self, ids: list[int], healed: HealedPrompt) -> Continuation:
        """The text of a row; `VocabularyError` if it does not reproduce its forced text."""
        new = Continuation(self.index.vocabulary, healed, self.bounds)
        new.add(ids)
        return new

    def _ended(self, ids: list[int], healed: HealedPrompt) -> bool:
        """Whether these tokens are enough; a row is read only where they may be."""
        bounds = self.bounds
        new = self.index.vocabulary.decode(ids)[len(healed.forced) :]
        counted = bounds.max_tokens is not None and len(ids) >= bounds.max_tokens
        full = bounds.max_bytes is not None and len(new) >= bounds.max_bytes
        if not (counted or full or self._stops.first(new)):
            return False
        try:
            return self._parse(ids, healed).ended
        except VocabularyError:  # a beam that is beyond hope
            return False


def _as_arguments(model: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `generate`, with those that a generation config says among them."""
    if not hasattr(model, "generate") or getattr(model.config, "is_encoder_decoder", False):
        raise SettingError(
            f"{type(model).__name__} does not continue its prompt, so there is nothing to heal: "
            "give a causal language model of transformers, not an encoder-decoder model or a name."
        )
    for name in ("inputs", "input_ids", "attention_mask", "inputs_embeds", "position_ids"):
        if name in arguments:
            raise SettingError(f"{name} is made from the prompts: leave it out.")
    if arguments.get("token_healing"):
        raise SettingError("token_healing=True would heal a second time: leave it out.")
    config = arguments.pop("generation_config", None)
    settings = {} if config is None else config.to_diff_dict()
    settings.pop("transformers_version", None)
    return settings | arguments


def _count(name: str, arguments: dict[str, Any], model: Any) -> int | None:
    """Take out a number of tokens, which the model's own config may say; None if nobody does."""
    count: int | None = arguments.pop(name, None)
    count = getattr(model.generation_config, name, None) if count is None else count
    if count is not None:
        check_count(name, count, 1)
    return count


def _ends(arguments: dict[str, Any], vocabulary: Vocabulary) -> list[int]:
    """Take out the tokens that end a text; by default those of the vocabulary."""
    if "eos_token_id" in arguments:
        return as_list(arguments.pop("eos_token_id"))
    return end_ids(vocabulary)


def _window_of(model: Any) -> float:
    """How many tokens the model's positions reach; infinite if it does not say."""
    window = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return math.inf if window is None or window < 1 else window


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Any]:
    """One prompt or many → a list of prompts. A list with a token id in it is one prompt."""
    if is_text(prompts):
        return [prompts]
    parts = prompts_of("prompts", cast(Sequence[Prompt], prompts))
    if any(hasattr(part, "__index__") and not getattr(part, "ndim", 0) for part in parts):
        return [parts]
    return parts


def _likeliest(
    model: Any, healed: HealedPrompt, ids: list[int], new: bytes, index: SortedVocabulary
) -> bytes:
    """The middle of tokens that did not end: up to where the end was most probable."""
    if not healed.ending:
        return new
    places, size = [], -len(healed.forced)
    for n, id in enumerate(ids):
        size += index.length(id)
        if size >= len(healed.ending) and new[:size].endswith(healed.ending):
            places.append((n, size))
    if not places:
        return new
    with torch.no_grad():
        logits = model(torch.tensor([[*healed.kept, *ids]], device=model.device)).logits[0].float()
    rows = logits[[len(healed.kept) + n for n, _ in places]].log_softmax(dim=-1)
    best = int(rows[:, end_ids(index.vocabulary)].logsumexp(dim=-1).argmax())
    return new[: places[best][1] - len(healed.ending)]
