"""Train the small model that benchmarks of exact conditioning hold out.

It shares nothing with the embedded one: another seed, another vocabulary (3,000, split as GPT-2
does), other data (documentation, scripts, fixtures and the message catalogues in German and
Chinese of one package, and the Universal Declaration of Human Rights in three languages). The last
quarter of each of those three, which the model never sees, is text for the benchmarks.

Usage: ``python training/small.py --out FOLDER --texts CHARWISE_DATA/text [--downloads FOLDER]``
"""

from __future__ import annotations

import argparse
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from data import COPYLEFT, Document, decode, fetch, packages
from optimisers import optimisers

SEED = 20
END = "<|endoftext|>"
VOCABULARY = 3000
CONTEXT = 512
ROWS, LENGTH = 8, 256  # of a step
WARMUP_STEPS = 60
DECAY_FROM = 0.3  # share of the run after which the rate falls linearly to zero
PACKAGE = "django"
SUFFIXES = {".txt", ".js", ".json", ".html", ".css", ".po"}
LANGUAGES = {"de", "zh_Hans", "zh_Hant"}
#: How often a document is read for once that the documentation is.
WEIGHTS = {".po": 4, "declaration": 8}
DECLARATIONS = ("en", "de", "zh")
TRAINED_SHARE = 0.75  # of each declaration


def wanted(path: str) -> bool:
    """Say whether a file of the package is read."""
    pure = PurePosixPath(path)
    if pure.suffix == ".po":
        return "tests" not in pure.parts and bool(LANGUAGES & set(pure.parts))
    if pure.suffix in {".txt", ".json"}:
        return "releases" not in pure.parts and "topics" not in pure.parts
    return pure.suffix in SUFFIXES and "vendor" not in pure.parts


def package_documents(folder: Path) -> Iterator[Document]:
    """Yield the files of the package's archive, in a fixed order."""
    [package] = [package for package in packages() if package.name == PACKAGE]
    with tarfile.open(fetch(package, folder)) as archive:
        for info in sorted(archive.getmembers(), key=lambda item: item.name):
            if not info.isfile() or not wanted(info.name):
                continue
            handle = archive.extractfile(info)
            text = decode(handle.read()) if handle is not None else None
            if text and len(text) < 60_000 and not COPYLEFT.search(text[:3000]):
                yield Document(PACKAGE, info.name, text)


def declarations(folder: Path) -> Iterator[Document]:
    """Yield the parts of the declaration that are trained on."""
    for language in DECLARATIONS:
        text = (folder / f"udhr_{language}.txt").read_text(encoding="utf-8")
        yield Document("declaration", language, text[: int(TRAINED_SHARE * len(text))])


def weighted(documents: list[Document]) -> list[Document]:
    """Repeat documents as often as they are read."""
    return [
        document
        for document in documents
        for _ in range(WEIGHTS.get(document.source, WEIGHTS.get(Path(document.path).suffix, 1)))
    ]


def train_tokenizer(documents: list[Document]) -> Tokenizer:
    """Train a byte-level vocabulary that splits words as GPT-2 does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((document.text for document in documents), trainer=trainer)
    return tokenizer


def build() -> LlamaForCausalLM:
    """Return the model, freshly initialised: 1.7M parameters."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=160,
        intermediate_size=416,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


class Stream:
    """An endless run of documents, each after `END`, shuffled anew each time round."""

    def __init__(self, tokenizer: Tokenizer, documents: list[Document]) -> None:
        end = tokenizer.token_to_id(END)
        texts = [document.text for document in documents if END not in document.text]
        self.pieces = [
            np.array([end, *encoding.ids], dtype=np.uint16)
            for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ]
        self.rng = np.random.default_rng(SEED)
        self.shuffle()

    def shuffle(self) -> None:
        """Put the documents in a new order."""
        order = self.rng.permutation(len(self.pieces))
        self.run = np.concatenate([self.pieces[i] for i in order])
        self.at = int(self.rng.integers(0, 512))

    def take(self, length: int) -> torch.Tensor:
        """Return the next tokens and one more, which is also the first of the next call."""
        if self.at + length + 1 > len(self.run):
            self.shuffle()
        row = self.run[self.at : self.at + length + 1]
        self.at += length
        return torch.from_numpy(row.astype(np.int64))


def rate(progress: float, step: int) -> float:
    """Return the learning rate's factor: warm-up, flat, then linear to zero."""
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    return warm * min(1.0, max(0.0, (1 - progress) / (1 - DECAY_FROM)))


def train(model: LlamaForCausalLM, stream: Stream, steps: int) -> None:
    """Run so many steps: the same weights from the same data, on the same machine."""
    tools = optimisers(model)
    peaks = [(group, group["lr"]) for tool in tools for group in tool.param_groups]
    losses: list[float] = []
    for step in range(steps):
        rows = torch.stack([stream.take(LENGTH) for _ in range(ROWS)])
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group, peak in peaks:
            group["lr"] = peak * rate(step / steps, step)
        for tool in tools:
            tool.step()
            tool.zero_grad()
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}, loss {np.mean(losses[-50:]):.3f}", flush=True)


def main() -> None:
    """Read, train and save."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the model")
    parser.add_argument(
        "--texts", type=Path, required=True, help="folder of udhr_en.txt and others"
    )
    parser.add_argument("--downloads", type=Path, help="default: OUT/downloads")
    parser.add_argument("--steps", type=int, default=800)
    args = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    downloads = args.downloads or args.out / "downloads"
    documents = weighted([*package_documents(downloads), *declarations(args.texts)])
    tokenizer = train_tokenizer(documents)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=END,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(args.out)
    stream, model = Stream(tokenizer, documents), build()
    train(model, stream, args.steps)
    half = model.half()
    half.config.use_cache = True
    half.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=0, pad_token_id=0)
    half.save_pretrained(args.out)


if __name__ == "__main__":
    main()
