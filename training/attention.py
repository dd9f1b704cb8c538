"""Causal attention for training on a CPU: plain matrix products over blocks of queries.

In bfloat16 PyTorch's own kernel for CPUs takes more than twice the time of these products, which
``python training/attention.py`` shows. They are opaque to ``torch.compile``, whose own form of them
gains nothing over the kernel.
"""

from __future__ import annotations

import math
import statistics
import time

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 128  # queries that see the same keys, but for the last block of them


def _future(size: int, like: Tensor) -> Tensor:
    """Return ``[size, size]``: minus infinity where the key comes after the query."""
    return torch.full((size, size), -math.inf, dtype=like.dtype).triu(1)


@torch.library.custom_op("charwise_training::attend", mutates_args=())
def attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return what each query sees, ``[heads, length, width]``, and the shares, block by block.

    The shares are one flat tensor, ``heads * BLOCK * (BLOCK + 2 * BLOCK + … + length)`` long.
    """
    heads, length, width = query.shape
    query = query * width**-0.5
    future = _future(BLOCK, query)
    out = torch.empty_like(value)
    blocks = length // BLOCK
    kept = query.new_empty(heads * BLOCK * BLOCK * blocks * (blocks + 1) // 2)
    at = 0
    for start in range(0, length, BLOCK):
        stop = start + BLOCK
        shares = kept[at : at + heads * BLOCK * stop].view(heads, BLOCK, stop)
        at += shares.numel()
        scores = torch.bmm(query[:, start:stop], key[:, :stop].transpose(1, 2))
        scores[:, :, start:] += future
        torch.softmax(scores, -1, out=shares)
        out[:, start:stop] = torch.bmm(shares, value[:, :stop])
    return out, kept


@attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    heads, length, _ = query.shape
    blocks = length // BLOCK
    size = heads * BLOCK * BLOCK * blocks * (blocks + 1) // 2
    return torch.empty_like(value), query.new_empty(size)


@torch.library.custom_op("charwise_training::attend_back", mutates_args=())
def attend_back(
    query: Tensor, key: Tensor, value: Tensor, kept: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value."""
    heads, length, width = query.shape
    scale = width**-0.5
    grad_query = torch.empty_like(query)
    grad_key = torch.zeros(key.shape, dtype=torch.float32)
    grad_value = torch.zeros(value.shape, dtype=torch.float32)
    at = 0
    for start in range(0, length, BLOCK):
        stop = start + BLOCK
        size = heads * BLOCK * stop
        shares = kept[at : at + size].view(heads, BLOCK, stop)
        at += size
        here = grad[:, start:stop]
        grad_value[:, :stop] += torch.bmm(shares.transpose(1, 2), here)
        of_shares = torch.bmm(here, value[:, :stop].transpose(1, 2))
        of_scores = torch._softmax_backward_data(of_shares, shares, -1, shares.dtype)
        of_scores *= scale
        grad_query[:, start:stop] = torch.bmm(of_scores, key[:, :stop])
        grad_key[:, :stop] += torch.bmm(of_scores.transpose(1, 2), query[:, start:stop])
    return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype)


@attend_back.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, kept: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.set_materialize_grads(False)  # the shares' would be zeros, as large as they are
    ctx.save_for_backward(*inputs, output[1])


def _back(ctx, grad, _):  # type: ignore[no-untyped-def]
    query, key, value, kept = ctx.saved_tensors
    return attend_back(query, key, value, kept, grad.contiguous())


attend.register_autograd(_back, setup_context=_keep)


def causal_attention(  # type: ignore[no-untyped-def]
    module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **_: object
) -> tuple[Tensor, None]:
    """Attend as an attention function of transformers does: ``[rows, heads, length, width]``."""
    rows, heads, length, width = query.shape
    if length % BLOCK:  # what is only measured
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return seen.transpose(1, 2), None
    flat = (rows * heads, length, width)
    out, _kept = attend(
        query.to(value.dtype).reshape(flat).contiguous(),
        key.to(value.dtype).reshape(flat).contiguous(),
        value.reshape(flat).contiguous(),
    )
    return out.view(rows, heads, length, width).transpose(1, 2), None


def main() -> None:
    """Print the milliseconds of both, there and back, and by how much they differ."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for rows, length in ((2, 512), (1, 1024), (1, 2048)):
        inputs = [torch.randn(rows, 4, length, 64).bfloat16().requires_grad_() for _ in range(3)]
        grad = torch.randn(rows, length, 4, 64).bfloat16()
        found = []
        for attend_so in (_kernel, causal_attention):
            times = []
            for _ in range(25):
                started = time.perf_counter()
                out = attend_so(None, *inputs, None)[0]
                grads = torch.autograd.grad(out, inputs, grad)
                times.append(1e3 * (time.perf_counter() - started))
            found.append((statistics.median(times), (out, *grads)))
        (kernel, theirs), (blocks, ours) = found
        apart = max(
            float(((a - b).abs().max() / a.abs().max()).detach())
            for a, b in zip(theirs, ours, strict=True)
        )
        print(
            f"{rows} x {length}: kernel {kernel:.1f} ms, blocks {blocks:.1f} ms, apart {apart:.3f}"
        )


def _kernel(  # type: ignore[no-untyped-def]
    module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, None]:
    seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return seen.transpose(1, 2), None


if __name__ == "__main__":
    main()
