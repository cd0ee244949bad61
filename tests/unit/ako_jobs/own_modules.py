"""Modules as users write them, for tests of jobs."""

import torch
from torch import nn


class Detached(nn.Module):
    """Logits that autograd does not follow; 2 x 4 x 5 images, 3 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(40, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.dense(images.flatten(1)).detach()


def detached() -> nn.Module:
    return Detached()
