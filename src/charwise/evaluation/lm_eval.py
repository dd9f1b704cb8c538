"""A model for lm-evaluation-harness: scores do not depend on where a prompt is cut.

Importing this module registers it as `charwise`. It scores the characters of a continuation given
those of its context, whatever tokens they fall into: docs/evaluation.md has the definitions.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from charwise.char_lm import CharLM, load, scores_or_errors
from charwise.errors import CharwiseError, SettingError, quote
from charwise.scoring.effort import Effort
from charwise.surprisal.score import Score

#: Bytes of output allowed for each token that a task allows.
BYTES_PER_TOKEN = 4

#: The names by which tasks say how many tokens of output they allow; the first counts.
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")

#: Settings of transformers that change nothing at these values, with which tasks spell defaults.
_NEUTRAL = {"num_beams": 1, "num_return_sequences": 1, "min_p": 0.0, "repetition_penalty": 1.0}

#: An outcome less probable than this is not the most probable of 256 bytes and the end of text.
_HOPELESS = -np.log(257)


@register_model("charwise")
class CharwiseLM(LM):  # type: ignore[misc]
    """`CharLM` as a model of the harness.

    Args:
        pretrained: what `charwise.load` takes, or a `CharLM`.
        preset: "fast", "default", "accurate" or "exact"; by default the model's own.
        tolerance: in place of a preset, in bits a byte; see `CharLM.score`.
        device, dtype, engine: see `charwise.load`.
        batch_size: requests scored together; "auto" lets charwise choose.
        max_batch_size: the most that "auto" may choose.

    Text is text: what looks like a special token in it is scored as its characters.

    >>> model = CharwiseLM("embedded", preset="fast")
    >>> pair = ("import nump", "y")
    >>> request = Instance("loglikelihood", {}, arguments=pair, idx=0, task_name="", doc_id=0)
    >>> [(logprob, greedy)] = model.loglikelihood([request], disable_tqdm=True)
    >>> logprob > -1, greedy
    (True, True)
    """

    def __init__(
        self,
        pretrained: str | CharLM = "embedded",
        *,
        preset: str | None = None,
        tolerance: float | None = None,
        device: str | None = None,
        dtype: str | None = None,
        engine: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(pretrained, CharLM):
            pretrained = load(pretrained, device=device, dtype=dtype, engine=engine)
        self.lm = pretrained
        own = preset is None and tolerance is None
        self.effort = self.lm.effort if own else Effort.of(preset, tolerance)
        self.batch_size = _chunk_size(batch_size, max_batch_size)

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return (log p(continuation | context), whether it is greedy) of each request, nats.

        Greedy means that every byte of the continuation is the most probable next byte (or end
        of text) after the context and the bytes before it.
        """
        return self._scored(
            "loglikelihood",
            requests,
            lambda context, continuation: (context, continuation),
            lambda context, score: (float(score.logprobs.sum()), self._greedy(context, score)),
            disable_tqdm,
        )

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[Any]:
        """Return log →p(text) of each request, nats: of all its bytes, without the end of text."""
        answers = self._scored(
            "loglikelihood_rolling",
            requests,
            lambda *parts: ("", parts[-1]),
            lambda _, score: float(score.logprobs.sum()),
            disable_tqdm,
        )
        # lm-eval 0.5 gives ("", text), and takes pairs as of `loglikelihood`.
        pairs = zip(requests, answers, strict=True)
        return [(one, False) if len(request.args) > 1 else one for request, one in pairs]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return a completion of each context, without the string that stopped it.

        It has at most four bytes for each token allowed. It is a sample if `do_sample` is true, or
        absent and the temperature above 0, seeded by Python's `random`, which the harness seeds. A
        context that leaves no room for it in the window loses its beginning.
        """
        answers = []
        for request in tqdm(requests, desc="generate_until", disable=disable_tqdm):
            context, settings = request.args
            answer = self._generate(context, settings)
            self.cache_hook.add_partial("generate_until", (context, settings), answer)
            answers.append(answer)
        return answers

    def get_model_info(self) -> dict[str, str]:
        """Return engine, device, vocabulary and effort, for the harness's report."""
        return {**self.lm.info(), "effort": str(self.effort)}

    @property
    def tokenizer_name(self) -> str:
        """Raise `SettingError`: the harness needs it for chat templates only."""
        raise SettingError(
            "charwise does not apply chat templates: the harness hands a template's special tokens "
            "over as text, and here text is never matched to special tokens. Leave out "
            "--apply_chat_template."
        )

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Raise `SettingError` if one is asked for."""
        return self.tokenizer_name if chat_template else None

    def _scored(
        self,
        kind: str,
        requests: list[Instance],
        pair: Callable[..., tuple[str, str]],
        answer: Callable[[str, Score], Any],
        disable_tqdm: bool,
    ) -> list[Any]:
        """The answers in the order of the requests, scored longest first in common batches."""
        pairs = [pair(*request.args) for request in requests]
        order = sorted(range(len(pairs)), key=lambda at: -len("".join(pairs[at])))
        answers: list[Any] = [None] * len(pairs)
        with tqdm(total=len(pairs), desc=kind, disable=disable_tqdm) as bar:
            for start in range(0, len(order), self.batch_size):
                chunk = order[start : start + self.batch_size]
                contexts, texts = zip(*(pairs[at] for at in chunk), strict=True)
                scores = scores_or_errors(self.lm, texts, contexts, preset=self.effort)
                for at, score in zip(chunk, scores, strict=True):
                    if isinstance(score, CharwiseError):
                        raise score
                    answers[at] = answer(pairs[at][0], score)
                    self.cache_hook.add_partial(kind, requests[at].args, answers[at])
                bar.update(len(chunk))
        return answers

    def _greedy(self, context: str, score: Score) -> bool:
        """Whether no byte has a more probable rival; looks only where the scores leave a doubt."""
        if (score.logprobs < _HOPELESS).any():
            return False
        doubtful = [at for at, logprob in enumerate(score.logprobs) if logprob <= np.log(0.5)]
        before = context.encode()
        for at in sorted(doubtful, key=lambda at: score.logprobs[at]):
            rivals = self.lm.next(before + score.raw[:at], preset=self.effort).probs
            if rivals.argmax() != score.raw[at]:
                return False
        return True

    def _generate(self, context: str, settings: dict[str, Any]) -> str:
        rest = dict(settings)
        until = rest.pop("until", None) or []
        stop = [until] if isinstance(until, str) else list(until)
        lengths = [rest.pop(name, None) for name in _LENGTHS]
        # Tokens of output allowed where a task does not say, as in the harness's own adapters.
        tokens = int(next((n for n in lengths if n is not None), 256))
        sample = rest.pop("do_sample", None)
        temperature = float(rest.pop("temperature", 1.0 if sample else 0.0))
        top_p, top_k = float(rest.pop("top_p", 1.0)), int(rest.pop("top_k", 0))
        rest = {name: v for name, v in rest.items() if v is not None and v != _NEUTRAL.get(name)}
        if rest:
            raise SettingError(
                f"generate_until: charwise has no {', '.join(sorted(rest))}. It understands until, "
                f"do_sample, temperature, top_p, top_k and {_LENGTHS[0]}: remove the others from "
                "generation_kwargs or --gen_kwargs."
            )
        completion = self.lm.complete(
            self._with_room(context, tokens),
            max_new_bytes=BYTES_PER_TOKEN * tokens,
            temperature=0.0 if sample is False else temperature,
            top_p=top_p,
            top_k=top_k,
            seed=random.getrandbits(63),
            stop=[string for string in stop if string],
            preset=self.effort,
        )[0]
        return completion.text

    def _with_room(self, context: str, tokens: int) -> bytes:
        """The end of a context that leaves room for so many tokens in the model's window."""
        vocabulary, window = self.lm.vocabulary, self.lm.engine.window
        data = context.encode()
        if window is None:
            return data
        room = window - len(vocabulary.bos_ids) - tokens
        if room < 1:
            raise SettingError(
                f"generate_until: max_gen_toks is {tokens}, which leaves no room for a context in "
                f"the model's window of {window} tokens. Lower it in generation_kwargs."
            )
        ids = vocabulary.encode_beginning(data)
        if len(ids) <= room:
            return data
        cut = vocabulary.seam(ids, range(len(ids) - room, len(ids) - room * 3 // 4 + 1))
        return data[len(vocabulary.decode(ids[:cut])) :]


def _chunk_size(batch_size: int | str | None, most: int | None = None) -> int:
    """The number of requests to score together; "auto" may have a number behind it, as "auto:4"."""
    if batch_size is None:
        return 1
    if str(batch_size).split(":")[0] == "auto":
        return min(32, most or 32)
    if not str(batch_size).isdecimal() or int(batch_size) < 1:
        raise SettingError(f"batch_size is {quote(batch_size)}: it must be 1 or more, or 'auto'.")
    return int(batch_size)
