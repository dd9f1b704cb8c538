"""Prompts for vLLM: cut as vLLM itself would tokenize them, and `heal_generate` for `vllm.LLM`."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import Any, Literal

from charwise.errors import HealingError, SettingError, shown
from charwise.healing import Rule
from charwise.processors.healed_prompt import HealedPrompt, heal_middle, heal_prompt
from charwise.processors.new_text import Bounds, Continuation
from charwise.processors.vllm import exact
from charwise.processors.vllm.settings import FORCED, Settings
from charwise.tokens.canonical import to_bytes
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompt_parts import is_text
from charwise.tokens.sentinels import spelling_of
from charwise.tokens.stops import Stops
from charwise.tokens.vocabulary import Vocabulary

#: The one that holds the bytes which a completion must have written last when it ends.
ENDING = "charwise_ending"


def most_forced(vocabulary: Vocabulary) -> int:
    """Most bytes that a request may force: CHARWISE_MOST_FORCED, or 256 or four munches.

    The automatic rule never forces two munches.

    Raises:
        SettingError: the variable is no number.

    >>> most_forced(Vocabulary.from_bytes([b"a" * 100])), most_forced(Vocabulary.from_bytes([b"a"]))
    (400, 256)
    """
    return Settings.read().most_forced or max(256, 4 * vocabulary.munch)


@dataclass(frozen=True)
class Served:
    """The tokenizer of a served model, a copy of our own, and its index."""

    tokenizer: Any
    index: SortedVocabulary

    @property
    def vocabulary(self) -> Vocabulary:
        return self.index.vocabulary

    def heal(
        self, prompt: str | bytes | Sequence[int], rule: Rule = "auto", specials: bool = True
    ) -> HealedPrompt:
        """Cut a prompt where healing should start; at least one token is kept.

        Text becomes the ids that vLLM itself would make of it, special tokens in the text
        included; `specials` says whether the tokenizer adds its own. Bytes are bytes.

        Raises:
            TokenizationError: ids outside the vocabulary.
            HealingError: an empty prompt, ids whose last one stops inside a character, or a rule
                that gives back more than `most_forced`.
            SettingError: an unknown rule.
        """
        if isinstance(prompt, str):
            to_bytes(prompt)  # refuses what has no UTF-8 form
            ids = self._ids(prompt, specials)
        elif is_text(prompt):
            before = self._ids("", specials)
            ids = self.vocabulary.encode_prompt([*before, self.vocabulary.lead + to_bytes(prompt)])
        else:
            ids = self.vocabulary.encode_prompt(prompt)
            self._check_whole_characters(ids)
        healed = heal_prompt(ids, self.index, rule)
        self.check_length(healed.forced)
        return healed

    @cached_property
    def fills_in(self) -> bool:
        """Whether the model has sentinels of fill-in-the-middle that are known."""
        return spelling_of(set(self.vocabulary.special.values())) is not None

    def heal_middle(
        self, prefix: str, suffix: str, rule: Rule, most: int, right: Rule
    ) -> HealedPrompt:
        """The model's own template around two texts, cut where healing should start on each side.

        Raises:
            TemplateError: a model that is not known to fill in the middle.
            HealingError: a rule that gives back more than `most_forced`.
        """
        healed = heal_middle(prefix, suffix, self.index, rule, right=right, most=most)
        self.check_length(healed.forced)
        return healed

    def _ids(self, text: str, specials: bool) -> list[int]:
        """As the tokenizer has it; unlike `encode`, this lets other threads run meanwhile."""
        backend = self.tokenizer.backend_tokenizer
        [found] = backend.encode_batch_fast([text], add_special_tokens=specials)
        return list(found.ids)

    def check_length(self, forced: bytes) -> None:
        """Refuse a forced text that is too long; the automatic rule's never is.

        Raises:
            HealingError: how long it is, and may be.
        """
        most = most_forced(self.vocabulary)
        if len(forced) > most:
            raise HealingError(
                f"{len(forced)} bytes would be forced; at most {most} may be in this server. Give "
                "back fewer tokens, or leave it to the rule 'auto'."
            )

    def _check_whole_characters(self, ids: list[int]) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        decoder.decode(self.vocabulary.decode(ids[-4:]))
        begun = decoder.getstate()[0]
        if begun:
            raise HealingError(
                f"the prompt's token ids stop inside a character, after {begun!r}: what follows "
                "could not be given as text. Give the whole character, or the prompt as text."
            )


def served(model_config: Any) -> Served:
    """Tokenizer and index of a model that vLLM serves; made once in each process.

    Raises:
        VocabularyError: a tokenizer of a kind that charwise cannot read.
        SettingError: vLLM was started without a tokenizer.
    """
    if model_config.skip_tokenizer_init:
        raise SettingError("vLLM runs without a tokenizer (skip_tokenizer_init): nothing can heal.")
    generation = model_config.try_get_generation_config().get("eos_token_id")
    return _served(
        model_config.tokenizer,
        model_config.tokenizer_mode,
        model_config.tokenizer_revision,
        model_config.trust_remote_code,
        model_config.get_vocab_size(),
        tuple(generation) if isinstance(generation, list) else generation,
    )


@lru_cache(maxsize=2)
def _served(
    name: str, mode: str, revision: str | None, trust: bool, width: int, ends: Any
) -> Served:
    try:
        from vllm.tokenizers import get_tokenizer
    except ImportError:  # its place in older versions
        from vllm.transformers_utils.tokenizer import get_tokenizer

    tokenizer = get_tokenizer(name, tokenizer_mode=mode, revision=revision, trust_remote_code=trust)
    vocabulary = Vocabulary.from_transformers(
        tokenizer, width, generation_config=SimpleNamespace(eos_token_id=ends)
    )
    return Served(tokenizer, SortedVocabulary(vocabulary))


def heal_generate(
    llm: Any,
    prompts: Sequence[str | bytes],
    sampling_params: Any,
    *,
    rule: Rule = "auto",
    method: Literal["mask", "exact"] = "mask",
) -> list[list[str]]:
    """Return the model's text after each prompt, with the prompts' ends healed.

    Args:
        llm: a `vllm.LLM`.
        prompts: texts, or bytes.
        sampling_params: one `SamplingParams` for all. `max_tokens` counts from where the prompt
            is reproduced: the engine is asked for as many more as the forced text has bytes, and
            the surplus is cut off. Stop strings count in the new text only.
        rule: where to cut, as for `healing.cut`.
        method: "mask", or "exact": token strings that carry on over the prompt's end are weighed
            whole, all but a thousandth of the mass (`charwise.processors.vllm.exact`); one is
            drawn, or at temperature 0 the best one taken, and nothing is masked after it.
            Temperature, top_k, top_p and min_p treat them as the tokens of one step; penalties,
            biases and the like count from there on.

    Returns:
        For each prompt, `n` texts. Nothing of the prompt is repeated or lost.

    Raises:
        SettingError, HealingError: as `HealingLogitsProcessor.validate_params`; "exact" where
            this vLLM does not tell enough, or with what restricts the output.
    """
    if not isinstance(method, str) or method not in ("mask", "exact"):
        raise SettingError(f"method is {shown(method)}: use 'mask' or 'exact'.")
    model = served(llm.llm_engine.model_config)
    healed = [model.heal(prompt, rule) for prompt in prompts]
    drawn: dict[int, list[tuple[int, ...]]] = {}
    if method == "exact":
        drawn = exact.drawn(llm, model.index, healed, sampling_params)
    calls: list[tuple[int, tuple[int, ...], Any]] = []  # prompt, what is begun, parameters
    for at, each in enumerate(healed):
        if at in drawn:
            after = exact.after(model.index, each, drawn[at], sampling_params)
            calls += [(at, *call) for call in zip(drawn[at], after, strict=True)]
        else:
            calls.append((at, (), _with_forced(sampling_params, each)))
    outputs = llm.generate(
        [{"prompt_token_ids": [*healed[at].kept, *begun]} for at, begun, _ in calls],
        [params for _, _, params in calls],
        use_tqdm=False,
    )
    texts: list[list[str]] = [[] for _ in healed]
    for (at, begun, _), output in zip(calls, outputs, strict=True):
        for completion in output.outputs:
            ids = [*begun, *completion.token_ids]
            texts[at].append(_new_text(model, healed[at], sampling_params, ids))
    return texts


def _with_forced(params: Any, healed: HealedPrompt) -> Any:
    params = params.clone()
    if healed.forced:
        params.extra_args = {**(params.extra_args or {}), FORCED: healed.forced.hex()}
        if params.max_tokens is not None:
            params.max_tokens += healed.most_again
        if params.min_tokens:
            params.min_tokens += healed.given_back
        params.stop = [] if params.min_tokens else Stops(params.stop).apart_from(healed.forced)
    return params


def _new_text(model: Served, healed: HealedPrompt, params: Any, ids: Sequence[int]) -> str:
    new = Continuation(
        model.vocabulary,
        healed,
        Bounds(
            params.stop, params.include_stop_str_in_output, params.min_tokens, params.max_tokens
        ),
        specials=not params.skip_special_tokens,
    )
    new.add(ids)
    return new.take(final=True)
