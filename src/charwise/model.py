"""`load`, which opens a model, and `connect`, which asks a server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

from charwise.bounded.lm import BoundedLM
from charwise.char_lm import CharLM
from charwise.scoring.effort import Effort, Limits
from charwise.token_lm import Estimand

if TYPE_CHECKING:
    from charwise.engines.load import HubKeywords, LoadKeywords


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    preset: str | Effort | None = None,
    tolerance: float | None = None,
    limits: Limits | None = None,
    estimand: Estimand = "all",
    **settings: Unpack[LoadKeywords],
) -> CharLM:
    """Load a causal language model; with no argument the embedded one, offline.

    The same arguments give the same engine again, while it is in use: weights are held once.

    Args:
        model: "embedded", a folder, a name on the Hugging Face hub, or a `.gguf` file.
        preset, tolerance: the default effort, see `CharLM.score`.
        limits: bounds on the memory and the model calls of each score, state and choice.
        estimand: which token strings count: "all" that spell a text; "canonical", those that the
            tokenizer itself may produce, renormalised at each token; or "canonical-mass", the
            share of those without renormalisation. See docs/coverings.md.
        settings: `device` ("cpu", "cuda", …; by default a GPU if there is one); `dtype` ("float32",
            "bfloat16" or "float16"; by default float32 on a CPU, else the model's own; a GGUF file
            has its own); `engine` ("transformers", "vllm", or "llama.cpp" for `.gguf` files, whose
            default it is); `revision` (branch, tag or commit on the hub); `trust_remote_code` (run
            the model's own code); `device_map` and `quantization_config`, handed to transformers'
            `from_pretrained`.

    Raises:
        ModelNotFoundError: what was looked for, and where.
        VocabularyError: a tokenizer that has no bytes, or whose merges cannot be read where only
            canonical token strings count.
        SettingError: for an unknown engine, device, dtype, preset or estimand.

    >>> load().info()["engine"].split()[0]
    'transformers'
    >>> load("embedded", preset="fast").engine is load().engine
    True
    >>> load(estimand="canonical").info()["estimand"]
    'canonical'
    """
    from charwise.engines.load import open_engine, with_estimand

    opened = with_estimand(open_engine(model, **settings), estimand)
    return CharLM(opened, preset=preset, tolerance=tolerance, limits=limits)


def connect(
    url: str,
    tokenizer: str | os.PathLike[str],
    *,
    model: str | None = None,
    top_logprobs: int = 20,
    api_key: str | None = None,
    seconds: float = 60.0,
    rounding: float = 1e-5,
    **hub: Unpack[HubKeywords],
) -> BoundedLM:
    """The model of a completions server that tells only its best next tokens, with bounds.

    Args:
        url: where its paths begin, such as `http://127.0.0.1:8000/v1`.
        tokenizer: of its model: a folder, or a name on the hub; compared with the server's.
        model: which of its models; by default the only one.
        top_logprobs: how many next tokens to ask for. vLLM gives 20, unless it was started with
            `--max-logprobs`; the more, the closer the bounds.
        api_key: its key; by default what the environment's CHARWISE_API_KEY says.
        seconds: how long it may say nothing.
        rounding: by how much its log-probabilities may be off, nats: the bounds allow for it.
        hub: `revision` and `trust_remote_code` of the tokenizer, as in `load`.

    Raises:
        ServerError: no server, or what it refuses, and what to do.
        EngineError: a tokenizer that is not the model's.
        ModelNotFoundError: no such tokenizer.
        SettingError: a model that it does not have.
        MissingExtraError: httpx is not installed.

    >>> connect("127.0.0.1:8000", "embedded")
    Traceback (most recent call last):
    charwise.errors.SettingError: the server is at '127.0.0.1:8000': give http://HOST:PORT/v1.
    """
    from charwise.engines.load import open_server

    engine = open_server(
        url,
        tokenizer,
        model=model,
        k=top_logprobs,
        api_key=api_key,
        seconds=seconds,
        rounding=rounding,
        hub=hub,
    )
    return BoundedLM(engine)
