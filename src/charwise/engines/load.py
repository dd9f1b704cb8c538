"""`open_engine`: the engine of a model, by the model's name.

An engine that is alive is found again, so that a model is never held twice. One thread opens at a
time: transformers' loader sets torch's default device for the whole process, and what runs beside
it finds tensors without contents, then and ever after.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack
from weakref import WeakValueDictionary

from charwise.engines.pretrained import (
    DEFAULT_MODEL,
    LOADING,
    LoadKeywords,
    check_memory,
    opens_in_llama_cpp,
    read_pretrained,
    read_vocabulary,
)
from charwise.errors import ModelError, SettingError, check_known, quote
from charwise.models import EMBEDDED

if TYPE_CHECKING:
    from charwise.engine import TokenLM
    from charwise.engines.llama_cpp import LlamaCppLM
    from charwise.engines.transformers import TransformersLM
    from charwise.engines.vllm import VllmLM

    Engine = TransformersLM | LlamaCppLM | VllmLM

__all__ = ["LoadKeywords", "engine_around", "open_engine"]

#: The engines that are alive, by the `repr` of what was asked for.
_open: WeakValueDictionary[str, Engine] = WeakValueDictionary()


def open_engine(
    model: str | os.PathLike[str] | None = None, **settings: Unpack[LoadKeywords]
) -> TokenLM:
    """The engine of a causal language model: "embedded", a folder, a name of the hub, a GGUF file.

    While one that was opened with the same arguments is in use anywhere, it is that one.
    """
    check_known(settings, LoadKeywords.__optional_keys__)
    name = DEFAULT_MODEL if model is None else model
    if not isinstance(name, str | os.PathLike):
        raise SettingError(
            f"a model is a name, a folder or a file, not {type(name).__name__}. A model that you "
            "have already: CharLM.from_transformers(model, tokenizer)."
        )
    if isinstance(name, str) and name.startswith(("http://", "https://")):
        raise SettingError(
            f"{quote(name)} is a server: give the name of its model, a folder or a file. To heal "
            "what a server completes, see docs/engines."
        )
    place = os.fspath(name)
    full = os.path.abspath(os.path.expanduser(place))
    if place and place != DEFAULT_MODEL and os.path.exists(full):
        # By its absolute path it is the same one wherever one stands.
        place = DEFAULT_MODEL if full == os.path.abspath(EMBEDDED) else full
    engine = settings.get("engine") or (
        "llama.cpp" if opens_in_llama_cpp(place) else "transformers"
    )
    if not isinstance(engine, str) or engine not in _ENGINES:
        ways = " or ".join(map(repr, _ENGINES))
        raise SettingError(f"unknown engine {quote(engine)}: use {ways}.")
    pairs = sorted({**settings, "engine": engine}.items())
    options = {what: value for what, value in pairs if value is not None and value is not False}
    for what in options.keys() & {"device", "dtype"}:  # torch's own objects, too
        options[what] = str(options[what]).removeprefix("torch.")
    return _opened(place, options)


def _opened(place: str, options: dict[str, Any]) -> Engine:
    """The engine that is open already, or a new one. Pickled engines are made by it, too."""
    key = repr((place, options))
    engine = _open.get(key)
    if engine is None:
        with LOADING:
            engine = _open.get(key)
            if engine is None:
                engine = _ENGINES[options["engine"]](place, options)
                engine.origin = (_opened, (place, options))
                _open[key] = engine
    return engine


def _transformers(place: str, options: dict[str, Any]) -> TransformersLM:
    return engine_around(*read_pretrained(place, **options))


def engine_around(model: Any, tokenizer: Any) -> TransformersLM:
    """The engine of a transformers model and its tokenizer that are loaded already."""
    from charwise.engines.forward import Forward
    from charwise.engines.transformers import TransformersLM
    from charwise.tokens.vocabulary import Vocabulary

    Forward.check(model)
    vocabulary = Vocabulary.from_transformers(
        tokenizer,
        model.config.get_text_config().vocab_size,
        generation_config=model.generation_config,
    )
    return TransformersLM(model, vocabulary)


def _llama_cpp(place: str, options: dict[str, Any]) -> LlamaCppLM:
    from charwise.engines.llama_cpp import LlamaCppLM

    names = ("dtype", "revision", "trust_remote_code", "device_map", "quantization_config")
    _refuse(options, "a GGUF file is opened as it is: leave it out", *names)
    on_cpu = options.get("device", "cpu") == "cpu"
    if on_cpu and os.path.isfile(place):
        check_memory(place, os.path.getsize(place))
    return LlamaCppLM(place, gpu_layers=0 if on_cpu else -1)


def _vllm(place: str, options: dict[str, Any]) -> VllmLM:
    from charwise.engines.vllm import VllmLM

    why = "vLLM has arguments of its own for that: make a vllm.LLM with them, and give it to "
    _refuse(options, f"{why}charwise.engines.vllm.VllmLM", "device_map", "quantization_config")
    _refuse(options, "vLLM runs where it was built for: leave it", "device")
    hub: dict[str, Any] = {
        "revision": options.get("revision"),
        "trust_remote_code": options.get("trust_remote_code", False),
    }
    vocabulary = read_vocabulary(place, **hub)  # says at once what is missing
    try:
        from vllm import LLM
        from vllm.platforms import current_platform
    except ImportError as error:
        raise ModelError(f"engine 'vllm' needs vLLM: pip install vllm. ({error})") from error
    llm = LLM(
        EMBEDDED if place == DEFAULT_MODEL else place,
        dtype=options.get("dtype") or ("float32" if current_platform.is_cpu() else "auto"),
        tokenizer_revision=hub["revision"],
        max_logprobs=-1,
        enable_prefix_caching=True,
        **hub,
    )
    return VllmLM(llm, vocabulary)


def _refuse(options: dict[str, Any], why: str, *names: str) -> None:
    """Raise `SettingError` if any of these was asked for."""
    for name in names:
        if name in options:
            raise SettingError(f"{name} is {quote(options[name])}, but {why}.")


#: How each engine opens a model.
_ENGINES: dict[str, Callable[[str, dict[str, Any]], Engine]] = {
    "transformers": _transformers,
    "llama.cpp": _llama_cpp,
    "vllm": _vllm,
}
