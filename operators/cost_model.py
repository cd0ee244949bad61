"""The cost model: how many partitions keep the exchange within the bandwidth."""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field


class CostModel(BaseModel):
    """Ako, section 3.2, equation 3.

    Args:
        gradients_per_s: gamma, gradients that one worker computes in a second.
        model_nbytes: m, size of the model in bytes.
        bandwidth: B, bytes that one worker can send in a second.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    gradients_per_s: float = Field(gt=0)
    model_nbytes: int = Field(gt=0)
    bandwidth: float = Field(gt=0)

    def partitions(self, nodes: int) -> int:
        """P = ceil(gamma m (n - 1) / B), at least 1."""
        return max(1, math.ceil(self.gradients_per_s * self.model_nbytes * (nodes - 1) / self.bandwidth))
