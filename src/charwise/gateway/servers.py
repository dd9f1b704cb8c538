"""The kinds of server that the gateway heals for: a row for each.

For a fifth kind, add a row. `recognize` (server.py) tells kinds apart, `_UNFIT` (plan.py) names the
fields of a client's own grammar, and `HealedAnswer` reads ids as `token_ids`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from charwise.api.writer import Message
from charwise.healing.forced import HealedPrompt


class Sample(NamedTuple):
    """Tokens of one sample, and the log-probabilities that the server gave for them."""

    ids: list[int]
    logprobs: Message | None = None


def _choices(answer: Any) -> list[Sample]:
    return [Sample(each["token_ids"], each.get("logprobs")) for each in answer["choices"]]


@dataclass(frozen=True)
class ServerKind:
    """One kind of server.

    Attributes:
        name: what `--server` takes.
        owner: `owned_by` in its list of models.
        force: the fields that force a text.
        path: where the first request goes.
        prompt: the field that takes token ids.
        samples: the samples in its answer; KeyError or TypeError for any other answer.
        max_tokens: the field for the number of tokens.
        more: further fields, such as those that ask for token ids.
        nested: the field that holds all others, if they are nested.
        stops: whether stop strings end the first request as soon as the text is written.
        several: whether one request may draw several samples.
        tokenize: path, field of the text and further fields of its tokenizer; None without one.
        about: the path of what it says of its model, and the places of the tokenizer's name and of
            the window; "" for the entry in its list of models.
        sampling: fields of a client's request that decide which token is drawn, beside OpenAI's.
        default_tokens: tokens of a completion whose request gives no number; None for no limit.
        logprobs: whether `Sample.logprobs` are in the form of OpenAI's completions.
        chat_ids: the chat request with token ids in the place of its messages; None if the server
            takes none.
        native: whether it has llama.cpp's `/completion` and `/infill`.
    """

    name: str
    owner: str
    force: Callable[[HealedPrompt], Message]
    path: str = "/v1/completions"
    prompt: str = "prompt"
    samples: Callable[[Any], list[Sample]] = _choices
    max_tokens: str = "max_tokens"
    more: Message = field(default_factory=dict)
    nested: str | None = None
    stops: bool = True
    several: bool = True
    tokenize: tuple[str, str, Message] | None = ("/tokenize", "prompt", {})
    about: tuple[str, str, str] = ("", "root", "max_model_len")
    sampling: tuple[str, ...] = ()
    default_tokens: int | None = 16
    logprobs: bool = False
    chat_ids: Callable[[Message, list[int]], Message] | None = None
    native: bool = False

    def request(
        self, healed: HealedPrompt, samples: int, sampling: Message, banned: Sequence[int] = ()
    ) -> Message:
        """The body of the first request, which draws tokens that write the forced text.

        `banned` are ids of control tokens whose spelling would pass for it.
        """
        fields = {**self.more, **sampling, self.max_tokens: len(healed.forced) or 1}
        if banned:
            bias = fields.get("logit_bias") or {}
            if isinstance(bias, list):  # llama.cpp takes both forms
                bias = [*bias, *([id, -100] for id in banned)]
            else:
                bias = {**bias, **{str(id): -100 for id in banned}}
            fields["logit_bias"] = bias
        if self.several:
            fields["n"] = samples
        if healed.forced:
            fields |= self.force(healed)
            # Servers that decode the first token without its leading space find this, too.
            text = healed.forced.decode()
            if self.stops:
                fields["stop"] = [text.lstrip(" ") or text]
        if self.nested is not None:
            fields = {self.nested: {name: fields[name] for name in fields if name != "model"}}
        return {**fields, self.prompt: healed.kept}

    def sampling_of(self, request: Message) -> Message:
        """The fields of a client's request that decide which token is drawn."""
        names = (*_SAMPLING, *self.sampling)
        return {name: request[name] for name in names if request.get(name) is not None}


#: OpenAI's fields, and those that all of these servers have, that decide which token is drawn.
_SAMPLING = (
    *("model", "temperature", "top_p", "top_k", "min_p", "seed", "logit_bias"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)


def _vllm_chat(request: Message, ids: list[int]) -> Message:
    # vLLM takes ids in the place of messages where one server forwards them to another.
    transfer = request.get("kv_transfer_params") or {}
    return {**request, "kv_transfer_params": {**transfer, "prompt_token_ids": ids}}


#: By the name that `--server` takes.
SERVERS: Mapping[str, ServerKind] = {
    kind.name: kind
    for kind in (
        ServerKind(
            name="vllm",
            owner="vllm",
            force=lambda healed: {"structured_outputs": {"regex": healed.regex()}},
            more={"return_token_ids": True, "include_stop_str_in_output": True},
            sampling=("priority", "cache_salt", "vllm_xargs", "allowed_token_ids", "logprobs"),
            logprobs=True,
            chat_ids=_vllm_chat,
        ),
        ServerKind(
            name="sglang",
            owner="sglang",
            force=lambda healed: {"regex": healed.regex()},
            path="/generate",
            prompt="input_ids",
            samples=lambda answer: [
                Sample(each["output_ids"])
                for each in (answer if isinstance(answer, list) else [answer])
            ],
            max_tokens="max_new_tokens",
            nested="sampling_params",
            about=("/get_model_info", "tokenizer_path", ""),
        ),
        ServerKind(
            name="trtllm",
            owner="tensorrt_llm",
            force=lambda healed: {"response_format": {"type": "regex", "regex": healed.regex()}},
            more={"detokenize": False},
            stops=False,  # it compares the ids of stop strings
            tokenize=None,
        ),
        ServerKind(
            name="llama.cpp",
            owner="llamacpp",
            force=lambda healed: {"grammar": healed.gbnf()},
            path="/completion",
            samples=lambda answer: [Sample(answer["tokens"])],
            max_tokens="n_predict",
            more={"return_tokens": True, "cache_prompt": True},
            several=False,
            tokenize=("/tokenize", "content", {"add_special": True, "parse_special": True}),
            about=("/props", "model_path", "default_generation_settings/n_ctx"),
            sampling=(
                *("samplers", "typical_p", "repeat_penalty", "repeat_last_n", "mirostat"),
                *("mirostat_tau", "mirostat_eta", "dynatemp_range", "dynatemp_exponent"),
                *("xtc_probability", "xtc_threshold", "top_n_sigma", "id_slot", "lora"),
                *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
            ),
            default_tokens=None,
            native=True,
        ),
    )
}
