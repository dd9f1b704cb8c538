"""Models and tokenizers of transformers as GGUF files, for tests."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

#: transformers' names → GGUF's, within a layer, of a Llama and of a Gemma 3.
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA3 = LAYER | {
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
OUTSIDE = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}


def write_model(
    path: Path,
    model: Any,
    tokenizer: Path | None = None,
    pre: str = "llama-bpe",
    stretched_from: int | None = None,
) -> Path:
    """A Llama, or a Gemma 3 with a sliding window in every other layer, in float32.

    Without a tokenizer its ids spell letters.
    """
    config = model.config
    gemma = config.model_type == "gemma3_text"
    writer = gguf.GGUFWriter(path, "gemma3" if gemma else "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters["full_attention"] if gemma else config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if gemma:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern(2)
    else:
        writer.add_rope_dimension_count(config.head_dim)
        writer.add_vocab_size(config.vocab_size)
    if stretched_from is not None:
        writer.add_rope_scaling_orig_ctx_len(stretched_from)
    if tokenizer is None:
        add_letters(writer, config.vocab_size)
    else:
        add_bpe(writer, tokenizer, pre)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if gemma and name == "lm_head.weight":  # tied
            continue
        first, *layer = name.removeprefix("model.").removesuffix(".weight").split(".", 2)
        short = (GEMMA3 if gemma else LAYER)[layer[1]] if layer else OUTSIDE[first]
        values = tensor.float()
        if gemma and "norm" in name:
            values = values + 1.0  # which transformers adds
        elif short in heads and not gemma:
            values = interleaved(values, heads[short])
        prefix = f"blk.{layer[0]}." if layer else ""
        writer.add_tensor(f"{prefix}{short}.weight", values.numpy())
    return write(writer, path)


def interleaved(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows of a projection as llama.cpp rotates them: pairs beside each other."""
    rows, columns = tensor.shape
    halves = tensor.reshape(heads, 2, rows // heads // 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns).contiguous()


def dequantized(source: Path, path: Path) -> Path:
    """The same file with all weights in float32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, str(reader.get_field("general.architecture").contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, inner)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.asarray(values, dtype=np.float32))
    return write(writer, path)


def write(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def small_writer(path: Path, kind: str = "llama") -> gguf.GGUFWriter:
    """The writer of a file without weights, of a model of this kind and of the least sizes."""
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(512)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    return writer


def write_vocabulary(path: Path, tokenizer: Path, kind: str, pre: str = "default") -> Path:
    """A file with a tokenizer and no weights; `kind` is "bpe" or "spm"."""
    writer = small_writer(path)
    if kind == "bpe":
        add_bpe(writer, tokenizer, pre)
    else:
        add_spm(writer, tokenizer)
    return write(writer, path)


def add_letters(writer: gguf.GGUFWriter, width: int) -> None:
    """A SentencePiece vocabulary of 26 letters; the last but one id ends and begins a text."""
    tokens = [chr(97 + i) if i < 26 else f"<{i}>" for i in range(width)]
    types = [gguf.TokenType.NORMAL if i < 26 else gguf.TokenType.UNUSED for i in range(width)]
    types[width - 2] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * width)
    writer.add_token_types(types)
    writer.add_bos_token_id(width - 2)
    writer.add_eos_token_id(width - 2)
    writer.add_add_space_prefix(False)


def add_bpe(writer: gguf.GGUFWriter, tokenizer: Path, pre: str) -> None:
    """A byte-level BPE from a tokenizer.json; its end-of-text token also begins texts."""
    read = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    ids = dict(read["model"]["vocab"])
    types = dict.fromkeys(ids.values(), gguf.TokenType.NORMAL)
    for added in read["added_tokens"]:
        ids[added["content"]] = added["id"]
        types[added["id"]] = (
            gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        )
    merges = read["model"]["merges"]
    tokens = {id: token for token, id in ids.items()}
    width = max(tokens) + 1
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([tokens.get(id, f"[PAD{id}]") for id in range(width)])
    writer.add_token_types([types.get(id, gguf.TokenType.UNUSED) for id in range(width)])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    config = json.loads((tokenizer / "tokenizer_config.json").read_text(encoding="utf-8"))
    end = config["eos_token"]
    end = end if isinstance(end, str) else end["content"]
    writer.add_eos_token_id(ids[end])
    start = config.get("bos_token") or end
    writer.add_bos_token_id(ids[start if isinstance(start, str) else start["content"]])
    writer.add_add_bos_token(False)


def add_spm(writer: gguf.GGUFWriter, tokenizer: Path) -> None:
    """Llama 2's kind of SentencePiece: byte tokens, then merges in the order of ids."""
    read = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = sorted(read["model"]["vocab"], key=read["model"]["vocab"].__getitem__)
    kind = gguf.TokenType
    named = {"<s>": kind.CONTROL, "</s>": kind.CONTROL, "<unk>": kind.UNKNOWN}
    kinds = [
        kind.BYTE if token.startswith("<0x") else named.get(token, kind.NORMAL) for token in tokens
    ]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(id) for id in range(len(tokens))])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(tokens.index("<s>"))
    writer.add_eos_token_id(tokens.index("</s>"))
    writer.add_unk_token_id(tokens.index("<unk>"))
