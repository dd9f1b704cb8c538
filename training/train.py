"""Train the embedded model, export it as Hugging Face files, measure it.

Usage: ``python training/train.py --data DIR --model FOLDER --tokens 67.5e6`` to train (FOLDER
already holds the tokenizer), ``python training/train.py --evaluate FOLDER`` to measure.

The schedule goes by tokens: warm-up, flat, then linearly to zero over the last ``--cooldown``.
As the rate falls, so does the share of rows from other packages.
``--resume`` continues from a checkpoint; from ``flat.pt``, the state just before the rate fell,
a finished run is made longer by giving more ``--tokens``.
"""

from __future__ import annotations

import argparse
import copy
import csv
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing import get_context
from torch.multiprocessing.spawn import spawn
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
)

from attention import causal_attention
from data import held_out
from optimisers import optimisers
from rows import IGNORED, MIDDLE, PREFIX, SUFFIX, Plan, Rows, span

CONTEXT = 2048
ROW_LENGTHS = (512, 1024, CONTEXT)  # until the rate falls, while it does, in its last part
LAST_PART = 0.5  # of the fall
CALL_TOKENS = 1024  # of one forward pass, or one row if that is longer
STEP_TOKENS = 8192
STDLIB_SHARE = (0.5, 0.6)  # while the rate is flat, and when it is zero
WARMUP_STEPS = 60
SAVE_MINUTES = 4
MIDDLES = 96  # held-out middles that the log measures
HEAD = ["step", "minutes", "tokens", "train_loss", "infill_loss", "context"]
HEAD += ["heldout_bits_per_byte", "middle_bits_per_byte", "middle_given_prefix"]
SEED = 1

AttentionInterface.register("blocks", causal_attention)


def build(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """Return the model, freshly initialised."""
    end = tokenizer.eos_token_id
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=6,
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


def start_from(folder: Path, tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """Return a trained model with rows for the tokens that its vocabulary lacks."""
    old = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = build(tokenizer)
    weights = old.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = model.state_dict()[name].clone()
        rows[: len(weights[name])] = weights[name]
        weights[name] = rows
    model.load_state_dict(weights)
    return model


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


@torch.no_grad()
def middle_bits(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> tuple[float, float]:
    """Return bits per byte of held-out middles: given both sides (PSM), and the prefix alone.

    The middles are short spans at random characters of 1,500-character windows; the bits are
    those of their canonical tokens, the end of the middle not counted.
    """
    rng = np.random.default_rng(5)
    texts = [document.text for document in held_out()]
    bits, size = np.zeros(2), 0

    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    before, between, middle = map(tokenizer.convert_tokens_to_ids, (PREFIX, SUFFIX, MIDDLE))
    for number in range(MIDDLES):
        text = texts[number % len(texts)]
        at = int(rng.integers(0, len(text) - 1500))
        window = text[at : at + 1500]
        first, last = 0, 1500
        while not 5 <= last - first <= 120:
            first, last = span(1500, rng)
        left, inside, right = map(encode, (window[:first], window[first:last], window[last:]))
        end = tokenizer.eos_token_id
        both = [end, before, *left, between, *right, middle]
        for way, prompt in enumerate((both, [end, *left])):
            ids = torch.tensor([[*prompt, *inside]])
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
            loss = F.cross_entropy(logits, ids[0, len(prompt) :], reduction="sum")
            bits[way] += loss.item() / math.log(2)
        size += len(window[first:last].encode())
    return bits[0] / size, bits[1] / size


def export(model: LlamaForCausalLM, folder: Path) -> None:
    """Write the model in half precision."""
    half = copy.deepcopy(model).half()
    half.config.use_cache = True
    end = half.config.eos_token_id
    half.generation_config = GenerationConfig(bos_token_id=end, eos_token_id=end, pad_token_id=end)
    half.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)


def rate(args: argparse.Namespace, tokens: int, step: int) -> float:
    """Return the learning rate's factor: warm-up, flat, then linear to zero."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * to_come(args, tokens)


def to_come(args: argparse.Namespace, tokens: int) -> float:
    """Return 1 while the rate is flat, then how much of its fall is still to come."""
    return min(1.0, max(0.0, (args.tokens - tokens) / args.cooldown))


def flat_gradients(model: nn.Module) -> Tensor:
    """Make every gradient a view of one tensor, which the processes add up, and return it."""
    flat = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    at = 0
    for parameter in model.parameters():
        parameter.grad = flat[at : at + parameter.numel()].view_as(parameter)
        at += parameter.numel()
    return flat


class Run:
    """What one process of a run holds; the state of all is the same after every step."""

    def __init__(self, rank: int, args: argparse.Namespace, queue: SharedCounter) -> None:
        self.rank, self.args, self.queue = rank, args, queue
        self.tokenizer = AutoTokenizer.from_pretrained(args.model)
        self.model = start_from(args.start, self.tokenizer) if args.start else build(self.tokenizer)
        self.model.set_attn_implementation("blocks")
        self.rows = Rows(args.data, self.tokenizer.backend_tokenizer)
        self.gradients = flat_gradients(self.model)
        self.tools = optimisers(self.model, args.rate)
        self.peaks = [group["lr"] for group in self.groups()]
        self.plan, self.step, self.tokens, self.minutes = Plan(), 0, 0, 0.0
        self.table: list[list[str]] = [HEAD]
        self.losses = torch.zeros(4)  # sum and count of targets, left to right and infilled
        self.compiled = torch.compile(self.loss_of, dynamic=False)
        if args.resume:
            self.load(args.resume)

    def groups(self) -> list[dict[str, Any]]:
        """Return what the rates are set in: others, once a checkpoint was loaded."""
        return [group for tool in self.tools for group in tool.param_groups]

    def loss_of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the summed loss of ``[rows]``."""
        hidden = self.model.model(input_ids=inputs, use_cache=False).last_hidden_state
        logits = self.model.lm_head(hidden.flatten(0, 1)).float()
        losses = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="none")
        return losses.view_as(targets).sum(dim=1)

    def falling(self) -> bool:
        """Say whether the rate falls by now."""
        return to_come(self.args, self.tokens) < 1.0

    def length(self) -> int:
        """Return how long rows are by now."""
        part = to_come(self.args, self.tokens)
        return ROW_LENGTHS[(part < 1.0) + (part < LAST_PART)]

    def train_step(self) -> None:
        """Take one step: the processes share its passes, each taking the next when it is free."""
        length = self.length()
        size = max(length, CALL_TOKENS)
        flat, last = STDLIB_SHARE
        share = last + (flat - last) * to_come(self.args, self.tokens)
        calls = [
            [self.plan.take(length, share) for _ in range(size // length)]
            for _ in range(STEP_TOKENS // size)
        ]
        losses = torch.zeros(4)
        self.gradients.zero_()
        while (number := self.queue.take(self.step)) < len(calls):
            rows = calls[number]
            built = [self.rows.build(row) for row in rows]
            inputs = torch.from_numpy(np.stack([row[0] for row in built]))
            targets = torch.from_numpy(np.stack([row[1] for row in built]))
            with torch.autocast("cpu", torch.bfloat16):
                loss = self.compiled(inputs, targets)
            torch.autograd.backward(loss.sum() / STEP_TOKENS)
            for row, total, count in zip(
                rows, loss.detach(), (targets != IGNORED).sum(dim=1), strict=True
            ):
                losses[2 * row.infill] += total
                losses[2 * row.infill + 1] += count
        dist.all_reduce(self.gradients)
        dist.all_reduce(losses)
        self.queue.clear(self.step)
        self.losses += losses
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        factor = rate(self.args, self.tokens, self.step)
        for group, peak in zip(self.groups(), self.peaks, strict=True):
            group["lr"] = peak * factor
        for tool in self.tools:
            tool.step()
        self.step, self.tokens = self.step + 1, self.tokens + STEP_TOKENS

    def report(self, scored: bool) -> None:
        """Write a line of the log; ``scored`` with the held-out columns."""
        means = self.losses[::2] / self.losses[1::2].clamp(min=1)
        length = self.length()
        row = [f"{self.step}", f"{self.minutes:.2f}", f"{self.tokens}"]
        row += [f"{mean:.4f}" for mean in means.tolist()] + [f"{length}"]
        if scored:
            self.model.eval()
            row.append(f"{bits_per_byte(self.model, self.tokenizer, length)['overall']:.4f}")
            row += [f"{bits:.4f}" for bits in middle_bits(self.model, self.tokenizer)]
            self.model.train()
        else:
            row += ["", "", ""]
        read = [
            f"{at / len(source.tokens):.2f}"
            for at, source in zip(self.plan.read, self.rows.sources, strict=True)
        ]
        print(*row, "epochs", *read, flush=True)
        self.table.append(row)
        self.losses.zero_()
        with self.args.log.open("w", encoding="utf-8", newline="") as out:
            csv.writer(out, lineterminator="\n").writerows(self.table)

    def save(self, name: str) -> None:
        """Write a checkpoint, whole or not at all."""
        state = {
            "model": self.model.state_dict(),
            "tools": [tool.state_dict() for tool in self.tools],
            "plan": (self.plan.read, self.plan.rows),
            "counts": (self.step, self.tokens, self.minutes),
            "table": self.table,
        }
        path = self.args.checkpoints / name
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self, path: Path) -> None:
        """Continue from a checkpoint."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for tool, stored in zip(self.tools, state["tools"], strict=True):
            tool.load_state_dict(stored)
        self.plan = Plan(*state["plan"])
        self.step, self.tokens, self.minutes = state["counts"]
        self.table = state["table"]


class SharedCounter:
    """Hands out the passes of a step, one at a time, to whichever process is free."""

    def __init__(self) -> None:
        self.counts = get_context("spawn").Array("i", 2)

    def take(self, step: int) -> int:
        """Return the number of the next pass of a step."""
        with self.counts.get_lock():
            self.counts[step % 2] += 1
            return int(self.counts[step % 2]) - 1

    def clear(self, step: int) -> None:
        """Start over; to be called when every process is done with the step."""
        self.counts[step % 2] = 0


def train(rank: int, args: argparse.Namespace, queue: SharedCounter) -> None:
    """Run the whole training in one of ``args.processes`` equal processes."""
    dist.init_process_group("gloo", rank=rank, world_size=args.processes)
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    run = Run(rank, args, queue)
    begin = time.monotonic() - 60 * run.minutes
    next_report, next_score, next_save = run.minutes + 1, 0, run.minutes + SAVE_MINUTES
    flat_saved = run.falling()
    while run.tokens < args.tokens:
        if run.falling() and not flat_saved:
            flat_saved = True
            if rank == 0:
                run.save("flat.pt")
        run.train_step()
        run.minutes = (time.monotonic() - begin) / 60
        done = run.tokens >= args.tokens
        if rank == 0 and (done or run.minutes >= next_report):
            scored = done or run.tokens >= next_score
            run.report(scored)
            next_report = run.minutes + 1
            next_score = run.tokens + args.score_every if scored else next_score
        if rank == 0 and (done or run.minutes >= next_save):
            run.save("latest.pt")
            next_save = run.minutes + SAVE_MINUTES
    if rank == 0:
        export(run.model, args.model)
    dist.destroy_process_group()


def export_checkpoint(checkpoint: Path, folder: Path) -> None:
    """Write a checkpoint's model as files of transformers, beside the tokenizer in ``folder``."""
    model = build(AutoTokenizer.from_pretrained(folder))
    model.load_state_dict(torch.load(checkpoint, weights_only=True)["model"])
    export(model, folder)


def evaluate(folder: Path) -> None:
    """Print bits per byte of exported files, loaded in single precision, by two windows."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    longest = model.config.max_position_embeddings
    windows = sorted({min(1024, longest), longest})
    print(f"{'':16}", *(f"{window:>6}" for window in windows))
    found = [bits_per_byte(model, tokenizer, window) for window in windows]
    for name in found[0]:
        print(f"{name:16}", *(f"{bits[name]:6.3f}" for bits in found))
    if MIDDLE in tokenizer.get_vocab():
        both, prefix = middle_bits(model, tokenizer)
        print(f"middles, bits per byte: {both:.3f} given both sides, {prefix:.3f} given the prefix")


def main() -> None:
    """Train or measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--evaluate", type=Path, metavar="FOLDER", help="only measure this model")
    parser.add_argument("--data", type=Path, help="folder written by data.py and tokenizer.py")
    parser.add_argument("--model", type=Path, help="folder of the tokenizer and for the model")
    parser.add_argument("--tokens", type=float, default=67.5e6, help="where the rate reaches zero")
    parser.add_argument("--cooldown", type=float, default=12.7e6, help="tokens while it falls")
    parser.add_argument("--rate", type=float, default=1.0, help="factor of both peak rates")
    parser.add_argument("--start", type=Path, metavar="OLD", help="weights to start from")
    parser.add_argument("--checkpoints", type=Path, help="default: the folder of --data")
    parser.add_argument("--resume", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--export", type=Path, metavar="CHECKPOINT", help="only write the model")
    parser.add_argument("--score-every", type=float, default=2e6, metavar="TOKENS")
    parser.add_argument("--log", type=Path, default=Path(__file__).with_name("log.csv"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="per process")
    args = parser.parse_args()
    if args.evaluate:
        evaluate(args.evaluate)
    elif args.export and args.model:
        export_checkpoint(args.export, args.model)
    elif args.data and args.model:
        args.checkpoints = args.checkpoints or args.data
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29511")
        spawn(train, args=(args, SharedCounter()), nprocs=args.processes)  # type: ignore[no-untyped-call]
    else:
        parser.error("give --evaluate, or --data and --model")


if __name__ == "__main__":
    main()
