"""Models, tokenizers and vocabularies by name: the embedded one, a folder, or the hub.

What is missing is said in one `ModelNotFoundError`, whoever asks: what was looked for, in which
folder, in which cache, and what the hub answered. A hub that cannot be reached costs seconds at
most, not the minutes that `from_pretrained` keeps trying.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypedDict, Unpack

from charwise.errors import (
    CharwiseError,
    EngineError,
    ModelNotFoundError,
    SettingError,
    shorter,
    shown,
)
from charwise.models import EMBEDDED
from charwise.tokens.saved_tokenizer import vocabulary_of_files
from charwise.tokens.vocabulary import Vocabulary

#: The name of the model in the package.
DEFAULT_MODEL = "embedded"


#: Held while anything is loaded: transformers' loader changes the whole process while it runs.
LOADING = threading.RLock()


class HubKeywords(TypedDict, total=False):
    """The settings of downloads from the Hugging Face hub.

    Attributes:
        revision: branch, tag or commit.
        trust_remote_code: run the Python code that comes with the model; read it first.
    """

    revision: str | None
    trust_remote_code: bool


class LoadKeywords(HubKeywords, total=False):
    """How a model is opened.

    Attributes:
        device: "cpu", "cuda", …; by default a GPU if there is one.
        dtype: "float32", "bfloat16" or "float16"; by default float32 on a CPU, else the
            model's own. A GGUF file has its own.
        engine: "transformers", "vllm", or "llama.cpp" for `.gguf` files, whose default it is
            where it is installed. transformers reads them with the package `gguf`.
        device_map: how transformers spreads the model over devices, instead of `device`:
            "auto", a device, or a dict.
        quantization_config: how transformers quantises the weights, such as its
            `BitsAndBytesConfig`.
    """

    device: str | None
    dtype: str | None
    engine: str | None
    device_map: Any
    quantization_config: Any


def read_pretrained(name: str, **settings: Unpack[LoadKeywords]) -> Any:
    """The transformers model and tokenizer of a name, as (model, tokenizer).

    Several threads may call this; one loads at a time.

    Raises:
        ModelNotFoundError: what was looked for, and where.
        EngineError: a model that is there and does not load.
        SettingError: for an unknown dtype, a device that is not there, a revision of a folder,
            or a model with code of its own that is not trusted.
    """
    device, dtype = settings.get("device"), settings.get("dtype")
    device_map, quantization = settings.get("device_map"), settings.get("quantization_config")
    hub = _hub(settings)
    with LOADING:
        import torch
        from transformers import AutoModelForCausalLM

        where = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if device is not None and device_map is not None:
            raise SettingError(
                f"device is {shown(device)} and device_map {shown(device_map)}: give one of them."
            )
        chosen: Any = torch.float32 if where == "cpu" else "auto"
        if dtype is not None:
            chosen = getattr(torch, dtype, None)
            if not isinstance(chosen, torch.dtype) or not chosen.is_floating_point:
                raise SettingError(
                    f"unknown dtype {shown(dtype)}: use float32, bfloat16 or float16."
                )
        options: dict[str, Any] = {"dtype": chosen}
        if quantization is not None:
            # Quantised weights may not be moved: they are made where they stay.
            options["quantization_config"] = quantization
            device_map = {"": where} if device_map is None else device_map
        if device_map is not None:
            options["device_map"] = device_map
        _check_folder(name)
        tokenizer = _read_tokenizer(name, **hub)
        model = _read(name, "model", AutoModelForCausalLM.from_pretrained, hub, **options)
        if device_map is not None:
            return model.eval(), tokenizer
        try:
            return model.to(where).eval(), tokenizer
        except (RuntimeError, AssertionError) as error:
            why = shorter(str(error))
            raise SettingError(
                f"cannot use the device {shown(where)}: {why}. If this torch has no such "
                "device, take 'cpu'."
            ) from error


def _hub(settings: HubKeywords) -> HubKeywords:
    """The hub's settings. Without one for code, transformers asks on the terminal."""
    return {
        "revision": settings.get("revision"),
        "trust_remote_code": settings.get("trust_remote_code", False),
    }


def _read_tokenizer(name: str, **hub: Unpack[HubKeywords]) -> Any:
    """The tokenizer alone. Raises the errors of `read_pretrained`."""
    with LOADING:
        from transformers import AutoTokenizer

        return _read(name, "tokenizer", AutoTokenizer.from_pretrained, _hub(hub))


def opens_in_llama_cpp(name: str) -> bool:
    """Whether a model is a GGUF file that llama.cpp reads: it is installed, or nothing else is."""
    missing = find_spec("llama_cpp") is None and find_spec("gguf") is not None
    return name.endswith(".gguf") and not missing


def read_vocabulary(name: str, **hub: Unpack[HubKeywords]) -> Vocabulary:
    """The vocabulary, as wide as the model's output layer if its config says how wide that is.

    >>> read_vocabulary("embedded").width
    8195
    """
    if opens_in_llama_cpp(name):
        from charwise.tokens.gguf import read_gguf

        return read_gguf(name)
    if find_spec("transformers") is None:
        return vocabulary_of_files(_files(name, hub.get("revision")), name)
    with LOADING:
        from transformers import AutoConfig, GenerationConfig

        tokenizer = _read_tokenizer(name, **hub)
        try:
            config = _read(name, "config", AutoConfig.from_pretrained, _hub(hub))
            width = config.get_text_config().vocab_size
        except (ModelNotFoundError, EngineError):  # a tokenizer without a model
            width = None
        if name.endswith(".gguf"):
            return Vocabulary.from_transformers(tokenizer, width)
        try:
            of: HubKeywords = {"revision": hub.get("revision")}  # it has no code
            generation = _read(name, "generation config", GenerationConfig.from_pretrained, of)
        except (ModelNotFoundError, EngineError):
            generation = None
        return Vocabulary.from_transformers(tokenizer, width, generation_config=generation)


#: The files that say what a tokenizer is.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
    "chat_template.jinja",
)


def _files(name: str, revision: str | None) -> dict[str, Path]:
    """The files of a tokenizer that a folder has, or a repository of the hub."""
    folder = Path(_source(name))
    if folder.is_dir():
        return {file: folder / file for file in _TOKENIZER_FILES if (folder / file).exists()}
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    found = {}
    _ask_hub(name, revision)
    for file in _TOKENIZER_FILES:
        with suppress(EntryNotFoundError, LocalEntryNotFoundError):
            found[file] = Path(hf_hub_download(name, file, revision=revision))
    return found


def _read(
    name: str, what: str, from_pretrained: Callable[..., Any], hub: HubKeywords, **options: Any
) -> Any:
    """Call `from_pretrained` quietly; its many errors become one sentence.

    What is in the hub's cache is taken from there without a question. What is not is looked up
    on the hub first, since `from_pretrained` alone tries for minutes where there is no network.
    """
    from huggingface_hub.constants import HF_HUB_OFFLINE

    source, revision = _source(name), hub.get("revision")
    if name.endswith(".gguf"):
        options["gguf_file"] = Path(name).name
    local = Path(source).is_dir()
    if "trust_remote_code" in hub:
        options["trust_remote_code"] = hub["trust_remote_code"]
    if revision is not None:
        if local:
            raise SettingError(
                f"revision is {revision!r}, but {name!r} is a folder, which has none: leave it out."
            )
        options["revision"] = revision
    with quietly():
        try:
            return from_pretrained(source, local_files_only=True, **options)
        except Exception as error:
            missing = isinstance(error, OSError | ValueError) and not _wants_trust(error)
            if local or not missing:
                raise _failure(name, source, what, error) from error
            if HF_HUB_OFFLINE:
                reason = "HF_HUB_OFFLINE is set, so the hub was not asked"
                raise ModelNotFoundError(_not_found(_called(name, revision), reason)) from error
        _ask_hub(name, revision)
        try:
            return from_pretrained(source, **options)
        except Exception as error:
            raise _failure(name, source, what, error) from error


def _source(name: str) -> str:
    """Return the name for `from_pretrained`; raises for a folder that does not exist."""
    if name == DEFAULT_MODEL:
        return EMBEDDED
    if not name:
        raise ModelNotFoundError(
            "no model '': the name is empty. Give a folder with a config.json, a repository of the "
            f"hub such as Qwen/Qwen2.5-Coder-0.5B, or {DEFAULT_MODEL!r}."
        )
    try:
        folder = Path(name).expanduser()
        if folder.is_dir():
            return str(folder)
        if name.endswith(".gguf") and folder.is_file():
            return str(folder.parent)
        there = folder.exists()
    except (OSError, RuntimeError, ValueError) as error:  # a name that no file can have
        raise ModelNotFoundError(f"no model {name[:80]!r}: {error}.") from None
    if there or name.startswith((".", "~", os.sep)) or name.count("/") > 1:
        raise ModelNotFoundError(
            f"no model {name!r}: there is no folder {folder.absolute()}. Give a folder with a "
            "config.json, a repository of the hub such as Qwen/Qwen2.5-Coder-0.5B, or "
            f"{DEFAULT_MODEL!r}."
        )
    return name


def _check_folder(name: str) -> None:
    """Raise for a folder that can have no model."""
    folder = Path(_source(name))
    if name.endswith(".gguf"):
        return
    # With an adapter's config alone, transformers finds the model that it adapts.
    if folder.is_dir() and not any(
        (folder / file).exists() for file in ("config.json", "adapter_config.json")
    ):
        files = sorted(folder.glob("*.gguf"))
        way_out = f"the file {files[0]}" if files else "a folder that save_pretrained has written"
        raise ModelNotFoundError(
            f"no model in the folder {folder.absolute()}: it has no config.json. Give {way_out}."
        )


def _ask_hub(name: str, revision: str | None) -> None:
    """Raise unless the hub answers that it has this repository, and this revision of it."""
    from huggingface_hub import HfApi
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.errors import (
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    called = _called(name, revision)
    try:
        # Seconds to wait for the hub's answer.
        HfApi().model_info(name, revision=revision, timeout=10)
    except RepositoryNotFoundError as error:
        raise ModelNotFoundError(_not_found(called, f"{ENDPOINT} has no public {name}")) from error
    except RevisionNotFoundError as error:
        reason = f"{ENDPOINT} has {name}, but no revision {revision!r} of it"
        raise ModelNotFoundError(_not_found(called, reason)) from error
    except HFValidationError as error:
        raise ModelNotFoundError(_not_found(called, "no hub can have such a name")) from error
    except Exception as error:  # whatever its HTTP library raises
        reason = f"{ENDPOINT} cannot be reached ({_in_a_line(error)}): give a folder that has it"
        raise ModelNotFoundError(_not_found(called, reason)) from error


def _called(name: str, revision: str | None) -> str:
    return name if revision is None else f"{name}@{revision}"


def _not_found(called: str, reason: str) -> str:
    from huggingface_hub.constants import HF_HUB_CACHE

    return (
        f"no model {called!r}: there is no folder {Path(called).absolute()}, it is not in the "
        f"hub's cache {HF_HUB_CACHE}, and {reason}."
    )


def _failure(name: str, source: str, what: str, error: Exception) -> CharwiseError:
    """Return the error for a model, or a part of one, that is there and cannot be read."""
    reason = _in_a_line(error)
    if name == DEFAULT_MODEL:
        return ModelNotFoundError(
            f"the embedded model is not in {source}: install charwise again. ({reason})"
        )
    folder = Path(source)
    place = f"the folder {folder.absolute()}" if folder.is_dir() else f"{name!r} on the hub"
    if _wants_trust(error):
        return SettingError(
            f"{place} comes with Python code of its own, which would run here. Read it, and if "
            "you trust it, ask for trust_remote_code=True."
        )
    # Of a tokenizer that is not there, transformers says so by a ValueError.
    if isinstance(error, OSError) or (what == "tokenizer" and isinstance(error, ValueError)):
        return ModelNotFoundError(f"{place} has no {what} that loads: {reason}.")
    return EngineError(f"the {what} of {place} does not load: {reason}.")


def _wants_trust(error: Exception) -> bool:
    return isinstance(error, ValueError) and "trust_remote_code" in str(error)


def _in_a_line(error: Exception) -> str:
    """Return the first line of an error, or all of it where that line only begins a list."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return (" ".join(lines) if lines[0].endswith(":") else lines[0]).rstrip(".")


@contextmanager
def quietly() -> Iterator[None]:
    """Without the progress bars and the notices of the libraries that load models."""
    from transformers.utils import logging as notices

    hub = logging.getLogger("huggingface_hub")
    level, verbosity, bars = hub.level, notices.get_verbosity(), notices.is_progress_bar_enabled()
    hub.setLevel(logging.ERROR)
    notices.set_verbosity_error()
    notices.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hub.setLevel(level)
        notices.set_verbosity(verbosity)
        if bars:
            notices.enable_progress_bar()
