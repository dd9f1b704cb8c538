"""Tokenizers and models of transformers, made on the spot: trained on one text, or not at all.

And the embedded model with the sentinels of another family in the place of its own.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from charwise.models import EMBEDDED
from charwise.tokens.sentinels import NAMES


def trained_tokenizer(
    text: str, size: int, end: str, start_token: bool = True
) -> PreTrainedTokenizerFast:
    """Byte-level BPE; without a start token it is like Qwen's: only an end token, never added."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    start = {"bos_token": end} if start_token else {}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, **start)


def random_model(
    kind: str, width: int, *, seed: int = 0, size: int = 32, window: int = 128, **settings: Any
) -> Any:
    """An untrained GPT-2 or Llama whose weights are large enough for it to have firm opinions."""
    shape = {"hidden_size": size, "intermediate_size": size, "max_position_embeddings": window}
    shape |= {"num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": width}
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **shape, **settings)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim == 2:
                weights.mul_(15)
    return model.eval()


#: The output layer of the models of `family`.
WIDTH = 32

LLAMA = {
    "vocab_size": WIDTH,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
}
GPT_NEO: dict[str, Any] = {
    "num_layers": 2,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 5,
    "intermediate_size": None,
    "max_position_embeddings": 32,
}
LAYERS = ["sliding_attention", "full_attention"]
#: name → the type of the model, and how its configuration differs from that of Llama.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "gpt2": ("gpt2", {}),
    "gpt_neox": ("gpt_neox", {}),
    "gpt_neo": ("gpt_neo", GPT_NEO),
    "qwen2": ("qwen2", {}),
    "qwen2_sliding": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "mistral": ("mistral", {"sliding_window": 8}),
    "gemma3": ("gemma3_text", {"head_dim": 8, "sliding_window": 5, "layer_types": LAYERS}),
    "phi3": ("phi3", {"sliding_window": 7}),
}
BRANCHED: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("mamba", {"hidden_size": 16, "state_size": 4, "max_position_embeddings": None}),
    "lfm2": (
        "lfm2",
        {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    ),
    "bloom": ("bloom", {"max_position_embeddings": None}),
}
EAGER_ONLY = {"gpt_neo", "mamba", "bloom"}


def family(name: str, attention: str = "eager", dtype: torch.dtype = torch.float32) -> Any:
    """An untrained model of one of the families."""
    kind, arguments = (FAMILIES | BRANCHED)[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **LLAMA | arguments, initializer_range=0.3)
    if name not in EAGER_ONLY:
        config._attn_implementation = attention
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    assert name in EAGER_ONLY or model.config._attn_implementation == attention
    return model


# ---- the embedded model with other sentinels ----------------------------------------------------


def tokenizer_with(names: Sequence[str] = (), special: bool = True) -> Any:
    """The embedded model's tokenizer with these sentinels and no others, after its other tokens.

    They are special tokens of it, or just added ones.
    """
    known = json.loads(Path(EMBEDDED, "tokenizer.json").read_text("utf-8"))
    known["added_tokens"] = [one for one in known["added_tokens"] if one["content"] not in NAMES]
    end = known["added_tokens"][0]["content"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(known)), bos_token=end, eos_token=end
    )
    added = [AddedToken(name, normalized=False, special=special) for name in names]
    tokenizer.add_tokens(added, special_tokens=special)
    return tokenizer


def model_with(names: Sequence[str], special: bool = True, seed: int = 1) -> tuple[Any, Any]:
    """The embedded model with sentinels that it was not trained to use, and its tokenizer."""
    torch.manual_seed(seed)
    tokenizer = tokenizer_with(names, special)
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32).eval()
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return model, tokenizer


def saved_with(folder: Path, names: Sequence[str], special: bool = True, seed: int = 1) -> Path:
    """The folder, in which `model_with` is saved now."""
    for part in model_with(names, special, seed):
        part.save_pretrained(folder)
    return folder
