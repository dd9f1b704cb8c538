"""Tokenizers and models of transformers, made on the spot: trained on one text, or not at all."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)


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
    torch.manual_seed(seed)
    model: Any
    if kind == "gpt2":
        shape = {"n_embd": size, "n_layer": 2, "n_head": 2, "n_positions": window}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=width, **shape, **settings))
    else:
        shape = {"hidden_size": size, "intermediate_size": size, "max_position_embeddings": window}
        shape |= {"num_hidden_layers": 2, "num_attention_heads": 2}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=width, **shape, **settings))
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim == 2:
                weights.mul_(15)
    return model.eval()
