"""The embedded model's tokenizer, with the sentinels of another family in the place of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from charwise.models import EMBEDDED
from charwise.tokens.sentinels import NAMES


def tokenizer_with(names: Sequence[str] = (), special: bool = True) -> Any:
    """A tokenizer that has these sentinels and no others; with none, of a model that fills in
    nothing.

    Args:
        names: of the sentinels, which get the ids after those of the other tokens.
        special: whether they are special tokens of it, or just added ones.
    """
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

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
    """The embedded model with these sentinels, which it was not trained to use; and its tokenizer.

    Args:
        names, special: as for `tokenizer_with`.
        seed: of the sentinels' embeddings.
    """
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    tokenizer = tokenizer_with(names, special)
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32).eval()
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return model, tokenizer


def saved_with(folder: Path, names: Sequence[str], special: bool = True, seed: int = 1) -> Path:
    """The folder, in which `model_with` is saved."""
    for part in model_with(names, special, seed):
        part.save_pretrained(folder)
    return folder
