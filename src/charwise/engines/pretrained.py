"""Models, tokenizers and vocabularies by name: the embedded one, a folder, or the hub.

`_model_folder` finds or downloads a repository of the hub; all else reads folders.
"""

import logging
import math
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypedDict, Unpack

from charwise.errors import CharwiseError, ModelError, SettingError, lacks_memory, quote, shorter
from charwise.models import EMBEDDED
from charwise.tokens.vocabulary import Vocabulary

#: The name of the model in the package.
DEFAULT_MODEL = "embedded"


#: Held while anything is loaded: transformers' loader changes the whole process while it runs.
LOADING = threading.RLock()


class LoadKeywords(TypedDict, total=False):
    """How a model is opened, as `charwise.load` says."""

    device: str | None
    dtype: str | None
    engine: str | None
    device_map: Any
    quantization_config: Any
    revision: str | None
    trust_remote_code: bool


def read_pretrained(name: str, **settings: Unpack[LoadKeywords]) -> Any:
    """The transformers model and tokenizer of a name; one thread loads at a time."""
    device, dtype = settings.get("device"), settings.get("dtype")
    device_map, quantization = settings.get("device_map"), settings.get("quantization_config")
    with LOADING:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        if device is not None and device_map is not None:
            raise SettingError(
                f"device is {quote(device)} and device_map {quote(device_map)}: give one of them."
            )
        where = device or ("cuda" if torch.cuda.is_available() else "cpu")
        chosen: Any = torch.float32 if where == "cpu" else "auto"
        if dtype is not None:
            chosen = getattr(torch, dtype, None)
            if not isinstance(chosen, torch.dtype) or not chosen.is_floating_point:
                raise SettingError(
                    f"unknown dtype {quote(dtype)}: use float32, bfloat16 or float16."
                )
        options: dict[str, Any] = {"dtype": chosen}
        if quantization is not None:
            # Quantised weights may not be moved: they are made where they stay.
            options["quantization_config"] = quantization
            device_map = {"": where} if device_map is None else device_map
        if device_map is not None:
            options["device_map"] = device_map
        folder = _model_folder(name, settings.get("revision"), _TOKENIZERS, _WEIGHTS)
        _check_config(name, folder)
        read = partial(_part, name, folder, settings.get("trust_remote_code", False))
        tokenizer = read("tokenizer", AutoTokenizer)
        if device_map is None:  # all of it goes through this machine's memory
            check_memory(name, _size(name, folder, chosen))
        model = read("model", AutoModelForCausalLM, **options)
        try:
            return (model if device_map is not None else model.to(where)).eval(), tokenizer
        except (RuntimeError, AssertionError) as error:
            why = shorter(str(error))
            raise SettingError(
                f"cannot use the device {quote(where)}: {why}. If this torch has no such "
                "device, take 'cpu'."
            ) from error


def opens_in_llama_cpp(name: str) -> bool:
    """Whether a model is a GGUF file that llama.cpp reads: it is installed, or nothing else is."""
    missing = find_spec("llama_cpp") is None and find_spec("gguf") is not None
    return name.endswith(".gguf") and not missing


def read_vocabulary(
    name: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> Vocabulary:
    """The vocabulary, as wide as the model's output layer if its config says how wide that is."""
    if opens_in_llama_cpp(name):
        from charwise.tokens.gguf import read_gguf

        return read_gguf(name)
    folder = _model_folder(name, revision, _TOKENIZERS)
    if find_spec("transformers") is None:
        return Vocabulary.from_files({file.name: file for file in folder.iterdir()}, name)
    with LOADING:
        from transformers import AutoConfig, AutoTokenizer, GenerationConfig

        read = partial(_part, name, folder, trust_remote_code)
        tokenizer, width, generation = read("tokenizer", AutoTokenizer), None, None
        with suppress(ModelError):  # a tokenizer without a model
            width = read("config", AutoConfig).get_text_config().vocab_size
        if not name.endswith(".gguf"):
            with suppress(ModelError):
                generation = read("generation config", GenerationConfig)
        return Vocabulary.from_transformers(tokenizer, width, generation_config=generation)


#: A repository's files without weights, and those by which a folder of the cache has a tokenizer.
_TEXTS = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py"]
_TOKENIZERS = ["tokenizer*", "vocab*", "*.model", "*.tiktoken"]

#: Files with weights: of several kinds, the first is taken.
_WEIGHTS = ["*.safetensors", "*.bin"]


def _model_folder(name: str, revision: str | None, *wanted: Sequence[str]) -> Path:
    """The folder of this name, or of the hub's cache, downloaded once.

    Where the cache has a file of each wanted kind, the hub is not asked.
    """
    if (folder := _local_folder(name)) is not None:
        if revision is not None:
            raise SettingError(
                f"revision is {revision!r}, but {name!r} is a folder, which has none: leave it out."
            )
        return folder
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE, HF_HUB_OFFLINE
    from huggingface_hub.errors import (
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    with suppress(HFValidationError, OSError):
        folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
        if all(any(file for one in kinds for file in folder.glob(one)) for kinds in wanted):
            return folder
    try:
        if HF_HUB_OFFLINE:
            reason = "HF_HUB_OFFLINE is set, so the hub was not asked"
        else:
            # Seconds to wait for the hub's answer.
            info = HfApi().model_info(name, revision=revision, timeout=10)
            files = [Path(file.rfilename) for file in info.siblings or ()]
            kinds = [kind for kind in _WEIGHTS if any(file.match(kind) for file in files)]
            patterns = [*_TEXTS, *kinds[:1]] if _WEIGHTS in wanted else _TEXTS
            return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except RepositoryNotFoundError:
        reason = f"{ENDPOINT} has no public {name}"
    except RevisionNotFoundError:
        reason = f"{ENDPOINT} has {name}, but no revision {revision!r} of it"
    except HFValidationError:
        reason = "no hub can have such a name"
    except Exception as error:  # whatever its HTTP library raises
        reason = f"{ENDPOINT} cannot be reached ({_in_a_line(error)}): give a folder that has it"
        reason += f", as `hf download {name} --local-dir FOLDER` makes it where there is a network"
    called = name if revision is None else f"{name}@{revision}"
    raise ModelError(
        f"no model {called!r}: there is no folder {Path(called).absolute()}, it is not in the "
        f"hub's cache {HF_HUB_CACHE}, and {reason}."
    )


def _local_folder(name: str) -> Path | None:
    """The folder of a model on this machine; None for a name that only the hub can have."""
    ways_out = (
        f"Give a folder with a config.json, a repository of the hub such as "
        f"Qwen/Qwen2.5-Coder-0.5B, or {DEFAULT_MODEL!r}."
    )
    if name == DEFAULT_MODEL:
        return Path(EMBEDDED)
    if not name:
        raise ModelError(f"no model '': the name is empty. {ways_out}")
    try:
        folder = Path(name).expanduser()
        if folder.is_dir():
            return folder
        if name.endswith(".gguf") and folder.is_file():
            return folder.parent
        there = folder.exists()
    except (OSError, RuntimeError, ValueError) as error:  # a name that no file can have
        raise ModelError(f"no model {name[:80]!r}: {error}.") from None
    if there or name.startswith((".", "~", os.sep)) or name.count("/") > 1:
        raise ModelError(f"no model {name!r}: there is no folder {folder.absolute()}. {ways_out}")
    return None


def _check_config(name: str, folder: Path) -> None:
    """Raise for a folder that can have no model."""
    # With an adapter's config alone, transformers finds the model that it adapts.
    configs = [folder / "config.json", folder / "adapter_config.json"]
    if not name.endswith(".gguf") and not any(file.exists() for file in configs):
        files = sorted(folder.glob("*.gguf"))
        way_out = f"the file {files[0]}" if files else "a folder that save_pretrained has written"
        raise ModelError(
            f"no model in the folder {folder.absolute()}: it has no config.json. Give {way_out}."
        )


def _part(name: str, folder: Path, trusted: bool, what: str, reader: Any, **options: Any) -> Any:
    """Read a part of a model from its folder quietly; the many errors become one sentence."""
    if name.endswith(".gguf"):
        options["gguf_file"] = Path(name).name
    if what != "generation config":  # which has no code
        # Without a setting, transformers asks on the terminal.
        options["trust_remote_code"] = trusted
    with quietly():
        try:
            return reader.from_pretrained(str(folder), local_files_only=True, **options)
        except Exception as error:
            raise _failure(folder, what, error) from error


def _failure(folder: Path, what: str, error: Exception) -> CharwiseError:
    """Return the error for a model, or a part of one, that is there and cannot be read."""
    reason = _in_a_line(error)
    place = f"the folder {folder.absolute()}"
    if lacks_memory(error):
        return _too_large(f"the {what} of {place}", reason)
    if isinstance(error, ValueError) and "trust_remote_code" in str(error):
        return SettingError(
            f"{place} comes with Python code of its own, which would run here. Read it, and if "
            "you trust it, ask for trust_remote_code=True."
        )
    # Of a tokenizer that is not there, transformers says so by a ValueError.
    if isinstance(error, OSError) or (what == "tokenizer" and isinstance(error, ValueError)):
        return ModelError(f"{place} has no {what} that loads: {reason}.")
    return ModelError(f"the {what} of {place} does not load: {reason}.")


def _too_large(what: str, reason: str) -> ModelError:
    return ModelError(
        f"{what} does not fit into memory: take a smaller one, dtype='bfloat16' "
        f"(--dtype bfloat16), or a quantized GGUF file. ({reason})"
    )


def check_memory(name: str, size: int) -> None:
    """Refuse a model whose weights take more bytes than are free: the system would end us."""
    limits = [math.inf]
    with suppress(OSError, KeyError):  # no Linux
        lines = Path("/proc/meminfo").read_text().splitlines()
        memory = {name: int(kilobytes) for name, kilobytes, *_ in map(str.split, lines)}
        limits.append(1024 * (memory["MemAvailable:"] + memory["SwapFree:"]))
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kind, path = line.split(":", 2)
            file = "memory.limit_in_bytes" if kind else "memory.max"
            for folder in Path(f"/sys/fs/cgroup/{kind}{path}", file).parents:
                with suppress(OSError, ValueError):  # "max" is no number
                    limits.append(int((folder / file).read_text()))
    if size > (free := min(limits)):
        sizes = f"it takes {size / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free"
        raise _too_large(f"the model {name!r}", sizes)


def _size(name: str, folder: Path, dtype: Any) -> int:
    """Bytes that a model's weights take at least, as torch's `dtype` or as they are ("auto")."""
    from safetensors import SafetensorError, safe_open

    if name.endswith(".gguf"):
        return Path(name).expanduser().stat().st_size
    whole, size = folder / "model.safetensors", 0
    for file in [whole] if whole.exists() else folder.glob("model-*-of-*.safetensors"):
        if dtype == "auto":
            size += file.stat().st_size
            continue
        # The loader says what is wrong with a file; quantised weights stay as they are.
        with suppress(SafetensorError), safe_open(file, "np") as weights:
            parts = map(weights.get_slice, weights.keys())
            floats = [part for part in parts if part.get_dtype() in ("F32", "F16", "BF16")]
            size += sum(math.prod(part.get_shape()) for part in floats) * dtype.itemsize
    return size


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
