"""What `charwise complete` runs: a loaded model, a request, and the methods that answer it.

A method turns a request into texts. To add one, write the function and name it in `METHODS`: the
command line, its table and its JSON show whatever is there, in that order.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charwise.errors import ModelNotFoundError, SettingError
from charwise.healing import Rule, allowed_next, cut
from charwise.index import SortedVocabulary
from charwise.models import EMBEDDED
from charwise.vocabulary import Vocabulary

if TYPE_CHECKING:
    from charwise.model import CharLM

#: The name that `--model` gives the model in the package.
DEFAULT_MODEL = "embedded"


@dataclass(frozen=True)
class Loaded:
    """A causal language model of transformers, with its tokenizer's index."""

    name: str
    model: Any
    tokenizer: Any
    index: SortedVocabulary

    @cached_property
    def lm(self) -> CharLM:
        """The same model over characters."""
        from charwise.engines.transformers import TransformersLM
        from charwise.model import CharLM

        return CharLM(TransformersLM(self.model, self.index.vocabulary))


@dataclass(frozen=True)
class Request:
    """What to complete, and how. At temperature 0 the likeliest token is always taken."""

    prompt: str | bytes
    rule: Rule = "auto"
    n: int = 1
    max_new_bytes: int = 64
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("n", 1), ("max_new_bytes", 1), ("temperature", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise SettingError(f"{name} is {getattr(self, name)}: it must be {least} or more.")
        if self.n > 1 and self.temperature == 0:
            raise SettingError(
                f"n is {self.n}, but at temperature 0 there is one completion: set a temperature."
            )


@dataclass(frozen=True)
class PromptCut:
    """The tokens of a prompt: `ids[:kept]` stay, the rest is given back as `forced` bytes.

    `dropped` tokens at the start did not fit into the model's window; `allowed` tokens may come
    first after the cut.
    """

    ids: list[int]
    kept: int
    forced: bytes
    dropped: int
    allowed: int


Method = Callable[[Loaded, Request], list[str]]


def plain(loaded: Loaded, request: Request) -> list[str]:
    """After the prompt's own tokens, as everybody does it."""
    return _generate(loaded, request, "off")


def healed(loaded: Loaded, request: Request) -> list[str]:
    """After the cut, with what was cut off forced."""
    return _generate(loaded, request, request.rule)


def exact(loaded: Loaded, request: Request) -> list[str]:
    """After the prompt's characters, however they fall into tokens."""
    completions = loaded.lm.complete(
        request.prompt,
        n=request.n,
        max_new_bytes=request.max_new_bytes,
        temperature=request.temperature,
        seed=request.seed,
    )
    return [completion.text for completion in completions]


#: Every method by its name, in the order in which they are shown.
METHODS: dict[str, Method] = {"plain": plain, "healed": healed, "exact": exact}


def _generate(loaded: Loaded, request: Request, rule: Rule) -> list[str]:
    import torch

    from charwise.processors.generate import heal_generate

    settings: dict[str, Any] = {"do_sample": False}
    if request.temperature > 0:
        settings = {"do_sample": True, "temperature": request.temperature, "top_k": 0}
        settings["num_return_sequences"] = request.n
    torch.manual_seed(request.seed)
    ids, _ = prompt_ids(loaded, request)
    return heal_generate(
        loaded.model,
        loaded.index,
        [ids],
        rule=rule,
        max_new_bytes=request.max_new_bytes,
        **settings,
    )


def prompt_ids(loaded: Loaded, request: Request) -> tuple[list[int], int]:
    """The prompt's ids as the model sees them, and how many at the start do not fit its window.

    A completion of n bytes takes at most n tokens; half of the window always stays for the prompt.
    """
    vocabulary = loaded.index.vocabulary
    prompt = request.prompt.encode() if isinstance(request.prompt, str) else request.prompt
    ids = vocabulary.encode(vocabulary.lead + prompt)
    window = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
    dropped = 0
    if window is not None:
        room = max(window // 2, window - request.max_new_bytes - vocabulary.munch)
        dropped = max(0, len(ids) - room + len(vocabulary.bos_ids))
    return [*vocabulary.bos_ids, *ids[dropped:]], dropped


def prompt_cut(loaded: Loaded, request: Request) -> PromptCut:
    """Where the request's rule cuts its prompt."""
    ids, dropped = prompt_ids(loaded, request)
    kept, forced = cut(ids, loaded.index, request.rule)
    allowed = len(allowed_next(forced, loaded.index))
    return PromptCut(ids, len(kept), forced, dropped, allowed)


def load(name: str = DEFAULT_MODEL, device: str | None = None) -> Loaded:
    """Load a model by the name of a folder or of a repository on the hub, or the embedded one.

    Raises:
        ModelNotFoundError: what was looked for, and where.
        VocabularyError: for a tokenizer that charwise cannot read.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from charwise.processors.generate import index_of

    tokenizer = load_tokenizer(name)
    dtype = "auto" if torch.cuda.is_available() else torch.float32
    model = _load(name, "model", AutoModelForCausalLM.from_pretrained, dtype=dtype)
    model.eval()
    model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return Loaded(name, model, tokenizer, index_of(tokenizer, model))


def load_tokenizer(name: str = DEFAULT_MODEL) -> Any:
    """The tokenizer alone. Raises `ModelNotFoundError`."""
    from transformers import AutoTokenizer

    return _load(name, "tokenizer", AutoTokenizer.from_pretrained)


def load_vocabulary(name: str = DEFAULT_MODEL) -> Vocabulary:
    """The vocabulary, as wide as the model's output layer if its config says how wide that is."""
    from transformers import AutoConfig, GenerationConfig

    tokenizer = load_tokenizer(name)
    try:
        config = _load(name, "config", AutoConfig.from_pretrained)
        width = config.get_text_config().vocab_size
    except ModelNotFoundError:  # a tokenizer without a model
        width = None
    try:
        generation = _load(name, "generation config", GenerationConfig.from_pretrained)
    except ModelNotFoundError:
        generation = None
    return Vocabulary.from_transformers(tokenizer, width, generation_config=generation)


def _source(name: str) -> str:
    """What to hand to `from_pretrained`; raises for a folder that does not exist."""
    if name == DEFAULT_MODEL:
        return EMBEDDED
    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(folder)
    if folder.exists() or name.startswith((".", "~", os.sep)) or name.count("/") > 1:
        raise ModelNotFoundError(
            f"no model {name!r}: there is no folder {folder.absolute()}. Give a folder with a "
            "config.json, a repository of the hub such as Qwen/Qwen2.5-Coder-0.5B, or "
            f"{DEFAULT_MODEL!r}."
        )
    return name


def _load(name: str, what: str, from_pretrained: Callable[..., Any], **kwargs: Any) -> Any:
    """Call `from_pretrained` quietly; its many errors become one sentence.

    What is in the hub's cache is taken from there without a question. What is not is looked up
    on the hub first, since `from_pretrained` alone tries for minutes where there is no network.
    """
    from huggingface_hub.constants import HF_HUB_OFFLINE

    source = _source(name)
    quiet()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return from_pretrained(source, local_files_only=True, **kwargs)
        except (OSError, ValueError) as error:
            if Path(source).is_dir():
                raise ModelNotFoundError(_not_in_folder(name, source, what, error)) from error
            if HF_HUB_OFFLINE:
                reason = "HF_HUB_OFFLINE is set, so the hub was not asked"
                raise ModelNotFoundError(_not_found(name, what, reason)) from error
        _ask_hub(name, what)
        try:
            return from_pretrained(source, **kwargs)
        except (OSError, ValueError) as error:
            reason = f"it is on the hub, but does not load: {_first_line(error)}"
            raise ModelNotFoundError(_not_found(name, what, reason)) from error


def _ask_hub(name: str, what: str) -> None:
    """Raise unless the hub answers that it has this repository."""
    from huggingface_hub import HfApi
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        HfApi().model_info(name, timeout=10)
    except RepositoryNotFoundError as error:
        reason = f"{ENDPOINT} has no public {name}"
        raise ModelNotFoundError(_not_found(name, what, reason)) from error
    except Exception as error:  # whatever its HTTP library raises
        reason = f"{ENDPOINT} cannot be reached: {_first_line(error)}"
        raise ModelNotFoundError(_not_found(name, what, reason)) from error


def _not_found(name: str, what: str, reason: str) -> str:
    from huggingface_hub.constants import HF_HUB_CACHE

    return (
        f"no {what} {name!r}: there is no folder {Path(name).absolute()}, it is not in the hub's "
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


def quiet() -> None:
    """Switch off the progress bars and the notices of the libraries that load models."""
    import logging

    import transformers

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
