"""A network of the user's own: which function makes the `torch.nn.Module`, as data that travels in a plan.

Nothing here imports PyTorch.
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue, PositiveInt

from operators.named import Named

INSTALL_TORCH = (
    "install it on every node: pip install 'ako-dataflow[torch]', "
    "or first the smaller CPU build: pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
)
"""What to do where PyTorch is missing."""


class TorchSpec(BaseModel):
    """A classifier made by the user's code.

    Two specifications with equal fields make equal networks: the function depends on its arguments and on PyTorch's
    random numbers only, which are seeded before it is called.

    Args:
        factory: makes the `torch.nn.Module`: float32 images (images, channels, height, width) in, logits
            (images, classes) out. A function or class, or its name ``module:function``.
        arguments: keyword arguments for it, JSON values.
        input: shape of an image, (channels, height, width).
        classes: number of classes.
        loss: takes logits (images, classes) and labels (images,) int64, returns one loss per image, (images,); a
            function or its name. Softmax cross-entropy if None.
        device: ``cpu``, ``cuda``, or ``auto`` for a GPU where there is one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    factory: Named
    arguments: dict[str, JsonValue] = {}
    input: tuple[PositiveInt, PositiveInt, PositiveInt]
    classes: PositiveInt
    loss: Named | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __hash__(self) -> int:
        return hash(json.dumps(self.model_dump(mode="json"), sort_keys=True))
