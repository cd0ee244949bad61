"""Networks of the user's own with a few buffers, for images of two pixels; logits are W x + b."""

import torch
from torch import nn


class Averaging(nn.Module):
    """Moves `mean` half of the way to the batch's mean pixels, and counts batches."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(2, 2)
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("batches", torch.tensor(0))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.flatten(1)
        if self.training:
            self.mean.mul_(0.5).add_(0.5 * pixels.mean(0))
            self.batches += 1
        return self.dense(pixels)


class Signed(nn.Module):
    """Counts images whose first pixel is bright up, and the others down."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(2, 2)
        self.register_buffer("balance", torch.tensor(0))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.flatten(1)
        if self.training:
            self.balance += (2 * (pixels[:, 0] > 0) - 1).sum()
        return self.dense(pixels)


class Shifted(nn.Module):
    """Logits are W x + b + shift, where `shift` is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(2, 2)
        self.register_buffer("shift", torch.zeros(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.dense(images.flatten(1)) + self.shift
