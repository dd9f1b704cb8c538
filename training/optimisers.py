"""The optimisers of both models that are trained here."""

from __future__ import annotations

import torch
from torch import nn

MATRIX_RATE = 0.012  # Muon
OTHER_RATE = 0.003  # AdamW


def optimisers(model: nn.Module, scale: float = 1.0) -> list[torch.optim.Optimizer]:
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
        torch.optim.Muon(matrices, lr=scale * MATRIX_RATE, weight_decay=0.1, momentum=0.95),
        torch.optim.AdamW(groups, lr=scale * OTHER_RATE, betas=(0.9, 0.95), fused=True),
    ]
