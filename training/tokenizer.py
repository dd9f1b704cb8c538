"""Train the byte-level BPE tokenizer and encode the corpus with it.

Usage: ``python training/tokenizer.py --data DIR --model FOLDER``; with ``--keep OLD`` the
vocabulary of the model in OLD is kept, and only the sentinels of infilling are added.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from data import Document, read
from rows import SENTINELS

END = "<|endoftext|>"
VOCABULARY = 8192
CONTEXT = 2048
STDLIB_WEIGHT = 2
OTHER_SHARE = 3

# Words may take one character before them (a space, a dot, an underscore, a bracket); digits go
# in threes; punctuation keeps its line end; indentation is one piece up to the word's own space.
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)


def train(texts: Iterator[str]) -> Tokenizer:
    """Train a tokenizer whose first token is ``<|endoftext|>``; the next are the sentinels."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, *SENTINELS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, documents: list[Document], path: Path) -> None:
    """Write ``<|endoftext|>`` and the tokens of every document, and where each one starts."""
    end = tokenizer.token_to_id(END)
    pieces, starts, total = [], [], 0
    texts = [document.text for document in documents if END not in document.text]
    for first in range(0, len(texts), 500):
        batch = texts[first : first + 500]
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            pieces.append(np.array([end, *encoding.ids], dtype=np.uint16))
            starts.append(total)
            total += len(pieces[-1])
    np.savez(path, tokens=np.concatenate(pieces), starts=np.array([*starts, total]))
    size = sum(len(text.encode()) for text in texts)
    print(f"{path.name}: {total} tokens, {size / total:.3f} bytes per token")


def main() -> None:
    """Train, save and encode."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder written by data.py")
    parser.add_argument("--model", type=Path, required=True, help="folder for the tokenizer files")
    parser.add_argument("--keep", type=Path, metavar="OLD", help="add the sentinels to this one")
    args = parser.parse_args()
    groups = {name: read(args.data / f"{name}.jsonl") for name in ("stdlib", "other")}

    def texts() -> Iterator[str]:
        for _ in range(STDLIB_WEIGHT):
            yield from (document.text for document in groups["stdlib"])
        yield from (document.text for document in groups["other"][::OTHER_SHARE])

    if args.keep:
        wrapped = AutoTokenizer.from_pretrained(args.keep)
        wrapped.add_special_tokens({"additional_special_tokens": list(SENTINELS)})
        wrapped.model_max_length = CONTEXT
        for name in ("is_local", "local_files_only"):  # how it was opened, not what it is
            wrapped.init_kwargs.pop(name, None)
        tokenizer = wrapped.backend_tokenizer
    else:
        tokenizer = train(texts())
        wrapped = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            bos_token=END,
            eos_token=END,
            pad_token=END,
            additional_special_tokens=list(SENTINELS),
            model_max_length=CONTEXT,
            clean_up_tokenization_spaces=False,
        )
    wrapped.save_pretrained(args.model)
    for name, documents in groups.items():
        encode(tokenizer, documents, args.data / f"{name}.npz")


if __name__ == "__main__":
    main()
