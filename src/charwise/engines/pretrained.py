"""Models, tokenizers and vocabularies by name: the embedded one, a folder, or the hub.

What is missing is said in one `ModelNotFoundError`, whoever asks: what was looked for, in which
folder, in which cache, and what the hub answered. A hub that cannot be reached costs seconds at
most, not the minutes that `from_pretrained` keeps trying.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from charwise.errors import ModelNotFoundError, SettingError
from charwise.models import EMBEDDED
from charwise.tokens.vocabulary import Vocabulary

#: The name of the model in the package.
DEFAULT_MODEL = "embedded"

#: Seconds to wait for the hub's answer.
TIMEOUT = 10


def read_pretrained(name: str, device: str | None = None, dtype: str | None = None) -> Any:
    """The transformers model and tokenizer of a name, as (model, tokenizer).

    Raises:
        ModelNotFoundError: what was looked for, and where.
        SettingError: for an unknown dtype or a device that is not there.
    """
    import torch
    from transformers import AutoModelForCausalLM

    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if dtype is None:
        chosen: Any = torch.float32 if where == "cpu" else "auto"
    else:
        chosen = getattr(torch, dtype, None)
        if not isinstance(chosen, torch.dtype):
            raise SettingError(f"unknown dtype {dtype!r}: use float32, bfloat16 or float16.")
    tokenizer = read_tokenizer(name)
    model = _read(name, "model", AutoModelForCausalLM.from_pretrained, dtype=chosen)
    try:
        return model.to(where).eval(), tokenizer
    except (RuntimeError, AssertionError) as error:
        raise SettingError(f"cannot use the device {where!r}: {error}") from error


def read_tokenizer(name: str) -> Any:
    """The tokenizer alone. Raises `ModelNotFoundError`."""
    from transformers import AutoTokenizer

    return _read(name, "tokenizer", AutoTokenizer.from_pretrained)


def read_vocabulary(name: str) -> Vocabulary:
    """The vocabulary, as wide as the model's output layer if its config says how wide that is.

    >>> read_vocabulary("embedded").width
    8192
    """
    if name.endswith(".gguf"):
        from charwise.tokens.gguf import read_gguf

        return read_gguf(name)
    from transformers import AutoConfig, GenerationConfig

    tokenizer = read_tokenizer(name)
    try:
        config = _read(name, "config", AutoConfig.from_pretrained)
        width = config.get_text_config().vocab_size
    except ModelNotFoundError:  # a tokenizer without a model
        width = None
    try:
        generation = _read(name, "generation config", GenerationConfig.from_pretrained)
    except ModelNotFoundError:
        generation = None
    return Vocabulary.from_transformers(tokenizer, width, generation_config=generation)


def _read(name: str, what: str, from_pretrained: Callable[..., Any], **kwargs: Any) -> Any:
    """Call `from_pretrained` quietly; its many errors become one sentence.

    What is in the hub's cache is taken from there without a question. What is not is looked up
    on the hub first, since `from_pretrained` alone tries for minutes where there is no network.
    """
    from huggingface_hub.constants import HF_HUB_OFFLINE

    source = _source(name)
    with _quietly():
        try:
            return from_pretrained(source, local_files_only=True, **kwargs)
        except (OSError, ValueError) as error:
            if Path(source).is_dir():
                raise ModelNotFoundError(_not_in_folder(name, source, what, error)) from error
            if HF_HUB_OFFLINE:
                reason = "HF_HUB_OFFLINE is set, so the hub was not asked"
                raise ModelNotFoundError(_not_found(name, reason)) from error
        _ask_hub(name)
        try:
            return from_pretrained(source, **kwargs)
        except (OSError, ValueError) as error:
            reason = f"its {what} is on the hub, but does not load: {_first_line(error)}"
            raise ModelNotFoundError(_not_found(name, reason)) from error


def _source(name: str) -> str:
    """What to hand to `from_pretrained`; raises for a folder that does not exist."""
    if name == DEFAULT_MODEL:
        return EMBEDDED
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return str(folder)
    if folder.exists() or name.startswith((".", "~", os.sep)) or name.count("/") > 1:
        raise ModelNotFoundError(
            f"no model {name!r}: there is no folder {folder.absolute()}. Give a folder with a "
            "config.json, a repository of the hub such as Qwen/Qwen2.5-Coder-0.5B, or "
            f"{DEFAULT_MODEL!r}."
        )
    return name


def _ask_hub(name: str) -> None:
    """Raise unless the hub answers that it has this repository."""
    from huggingface_hub import HfApi
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        HfApi().model_info(name, timeout=TIMEOUT)
    except RepositoryNotFoundError as error:
        raise ModelNotFoundError(_not_found(name, f"{ENDPOINT} has no public {name}")) from error
    except HFValidationError as error:
        raise ModelNotFoundError(_not_found(name, "no hub can have such a name")) from error
    except Exception as error:  # whatever its HTTP library raises
        reason = f"{ENDPOINT} cannot be reached: {_first_line(error)}"
        raise ModelNotFoundError(_not_found(name, reason)) from error


def _not_found(name: str, reason: str) -> str:
    from huggingface_hub.constants import HF_HUB_CACHE

    return (
        f"no model {name!r}: there is no folder {Path(name).absolute()}, it is not in the hub's "
        f"cache {HF_HUB_CACHE}, and {reason}."
    )


def _not_in_folder(name: str, source: str, what: str, error: Exception) -> str:
    if name == DEFAULT_MODEL:
        return f"the embedded model is not in {source}: install charwise again. ({error})"
    files = ", ".join(sorted(path.name for path in Path(source).iterdir())[:8])
    return (
        f"the folder {Path(source).absolute()} has no {what} that loads. "
        f"It holds: {files or 'nothing'}. ({_first_line(error)})"
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


@contextmanager
def _quietly() -> Iterator[None]:
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
