"""Train the embedded model, export it as Hugging Face files, measure it.

Usage: ``python training/train.py --data DIR --model FOLDER --minutes 60`` to train (FOLDER
already holds the tokenizer), ``python training/train.py --evaluate FOLDER`` to measure.
"""

from __future__ import annotations

import argparse
import copy
import csv
import math
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
)

from data import held_out

CONTEXT = 1024
SHORT_CONTEXT = 512
LONG_FROM = 0.75  # share of the run after which rows are CONTEXT tokens long
BATCH_TOKENS = 4096
STDLIB_SHARE = (0.45, 0.75)  # before and after STDLIB_FROM
STDLIB_FROM = 0.6
MATRIX_RATE = 0.012  # Muon
OTHER_RATE = 0.003  # AdamW
WARMUP_STEPS = 60
DECAY_FROM = 0.3  # share of the run after which the rate falls linearly to zero
SEED = 1


def build(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """Return the model, freshly initialised."""
    end = tokenizer.eos_token_id
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
    )
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            nn.init.zeros_(parameter)
    return model


class Stream:
    """An endless run of documents, shuffled anew each time round."""

    def __init__(self, path: Path, rng: np.random.Generator) -> None:
        stored = np.load(path)
        self.tokens, self.starts, self.rng = stored["tokens"], stored["starts"], rng
        self.epoch, self.at = 0, 0
        self.shuffle()

    def shuffle(self) -> None:
        """Put the documents in a new order."""
        order = self.rng.permutation(len(self.starts) - 1)
        pieces = [self.tokens[self.starts[i] : self.starts[i + 1]] for i in order]
        self.run, self.at = np.concatenate(pieces), int(self.rng.integers(0, 512))
        self.epoch += 1

    def take(self, length: int) -> Tensor:
        """Return the next tokens and one more, which is also the first of the next call."""
        if self.at + length + 1 > len(self.run):
            self.shuffle()
        row = self.run[self.at : self.at + length + 1]
        self.at += length
        return torch.from_numpy(row.astype(np.int64))

    def position(self) -> float:
        """Return how many times the documents have been read."""
        return self.epoch - 1 + self.at / len(self.run)


def module_bits(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, text: str, window: int
) -> float:
    """Return the total -log2 probability of a text's canonical tokens.

    The sequence is ``<|endoftext|>`` and the tokens. It is scored in windows of ``window``
    tokens that advance by half a window; each token is scored once, in the first window that
    holds it, so all but the first window score their second half only.
    """
    ids = [
        tokenizer.eos_token_id,
        *tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"],
    ]
    scored, total = 1, 0.0
    for start in range(0, len(ids), window // 2):
        piece = torch.tensor([ids[start : start + window]])
        logits = model(input_ids=piece).logits[0, scored - start - 1 : -1].float()
        target = piece[0, scored - start :]
        total += F.cross_entropy(logits, target, reduction="sum").item() / math.log(2)
        scored = start + piece.shape[1]
        if scored == len(ids):
            break
    return total


@torch.no_grad()
def bits_per_byte(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, window: int = CONTEXT
) -> dict[str, float]:
    """Return bits per byte of every held-out module, and over all of them."""
    result, bits, size = {}, 0.0, 0
    for document in held_out():
        here = module_bits(model, tokenizer, document.text, window)
        length = len(document.text.encode())
        result[document.path] = here / length
        bits, size = bits + here, size + length
    result["overall"] = bits / size
    return result


def export(model: LlamaForCausalLM, folder: Path) -> None:
    """Write the model in half precision."""
    half = copy.deepcopy(model).half()
    half.config.use_cache = True
    end = half.config.eos_token_id
    half.generation_config = GenerationConfig(bos_token_id=end, eos_token_id=end, pad_token_id=end)
    half.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)


def rate(progress: float, step: int) -> float:
    """Return the learning rate's factor: warm-up, flat, then linear to zero."""
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    return warm * min(1.0, max(0.0, (1 - progress) / (1 - DECAY_FROM)))


def optimisers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices and AdamW for the embedding and the norms."""
    matrices: list[nn.Parameter] = []
    embedding: list[nn.Parameter] = []
    norms: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            norms.append(parameter)
        else:
            (embedding if "embed" in name else matrices).append(parameter)
    groups = [
        {"params": embedding, "weight_decay": 0.1},
        {"params": norms, "weight_decay": 0.0},
    ]
    return [
        torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.1, momentum=0.95),
        torch.optim.AdamW(groups, lr=OTHER_RATE, betas=(0.9, 0.95), fused=True),
    ]


def share_gradients(model: nn.Module) -> None:
    """Average the gradients over the processes."""
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for grad, piece in zip(grads, torch.split(flat, [grad.numel() for grad in grads]), strict=True):
        grad.copy_(piece.view_as(grad))


def train(rank: int, args: argparse.Namespace) -> None:
    """Run the whole training in one of ``args.processes`` equal processes."""
    dist.init_process_group("gloo", rank=rank, world_size=args.processes)
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    rng = np.random.default_rng((SEED, rank))
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = build(tokenizer)
    average = copy.deepcopy(model)  # only for the early export
    streams = [Stream(args.data / f"{name}.npz", rng) for name in ("stdlib", "other")]

    def loss_of(rows: Tensor) -> Tensor:
        hidden = model.model(input_ids=rows[:, :-1], use_cache=False).last_hidden_state
        logits = model.lm_head(hidden.flatten(0, 1))
        return F.cross_entropy(logits.float(), rows[:, 1:].flatten())

    compiled = torch.compile(loss_of, dynamic=False)
    tools = optimisers(model)
    peaks = [(group, group["lr"]) for tool in tools for group in tool.param_groups]
    table = [["step", "minutes", "tokens", "train_loss", "context", "heldout_bits_per_byte"]]
    losses: list[float] = []
    step = tokens = 0
    next_report, next_score, early = 1.0, args.score_every, args.early_export
    begin = time.monotonic()
    while True:
        clock = torch.tensor((time.monotonic() - begin) / 60)
        dist.broadcast(clock, src=0)
        minutes = clock.item()
        progress = minutes / args.minutes
        done = progress >= 1
        length = CONTEXT if progress >= LONG_FROM else SHORT_CONTEXT
        if rank == 0 and (done or minutes >= next_report):
            score = ""
            if done or minutes >= next_score:
                model.eval()
                score = f"{bits_per_byte(model, tokenizer, length)['overall']:.4f}"
                model.train()
                next_score += args.score_every
            mean = f"{np.mean(losses):.4f}" if losses else ""
            row = [f"{step}", f"{minutes:.2f}", f"{tokens}", mean, f"{length}", score]
            print(*row, "epochs", *(f"{stream.position():.2f}" for stream in streams), flush=True)
            table.append(row)
            with args.log.open("w", encoding="utf-8", newline="") as out:
                csv.writer(out, lineterminator="\n").writerows(table)
            losses, next_report = [], minutes + 1
        if early and minutes >= early:
            if rank == 0:
                export(average, args.model)
            early = 0.0
        if done:
            break

        share = STDLIB_SHARE[progress >= STDLIB_FROM]
        picks = rng.random(BATCH_TOKENS // length // args.processes) >= share
        rows = torch.stack([streams[int(pick)].take(length) for pick in picks])
        with torch.autocast("cpu", torch.bfloat16):
            loss = compiled(rows)
        torch.autograd.backward(loss)
        share_gradients(model)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group, peak in peaks:
            group["lr"] = peak * rate(progress, step)
        for tool in tools:
            tool.step()
            tool.zero_grad()
        losses.append(loss.item())
        step, tokens = step + 1, tokens + rows.shape[0] * length * args.processes
        if early and step % 10 == 0:
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                    slow.lerp_(fast, 0.1)
    if rank == 0:
        export(model, args.model)
    dist.destroy_process_group()


def evaluate(folder: Path) -> None:
    """Print bits per byte of exported files, loaded in single precision."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for name, value in bits_per_byte(model, tokenizer).items():
        print(f"{name:16} {value:.3f}")


def main() -> None:
    """Train or measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--evaluate", type=Path, metavar="FOLDER", help="only measure this model")
    parser.add_argument("--data", type=Path, help="folder written by data.py and tokenizer.py")
    parser.add_argument("--model", type=Path, help="folder of the tokenizer and for the model")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--early-export", type=float, default=0.0, metavar="MINUTES")
    parser.add_argument("--score-every", type=float, default=6.0, metavar="MINUTES")
    parser.add_argument("--log", type=Path, default=Path(__file__).with_name("log.csv"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="per process")
    args = parser.parse_args()
    if args.evaluate:
        evaluate(args.evaluate)
    elif args.data and args.model:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29511")
        spawn(train, args=(args,), nprocs=args.processes)  # type: ignore[no-untyped-call]
    else:
        parser.error("give --evaluate, or --data and --model")


if __name__ == "__main__":
    main()
