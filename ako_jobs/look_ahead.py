"""Settings of jobs without a master whose workers' momentum looks ahead (docs/momentum.md)."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from ako_jobs.codec_settings import CodecConfig
from operators.optimizer import Sgd


class LookAheadConfig(CodecConfig):
    """Settings of a job whose workers send each other updates.

    Args:
        look_ahead: steps of every worker's momentum that all replicas are ahead, so that gradients are computed where
            all updates under way are about to lead; 0: off; see docs/momentum.md.
    """

    look_ahead: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _looks_along_momentum(self) -> Self:
        if self.look_ahead and not self.momentum:
            message = "look_ahead needs momentum; add momentum=0.9, with a tenth of the lr"
            raise ValueError(message)
        if self.look_ahead and self.nesterov:
            message = "look_ahead says itself how far momentum looks ahead, and nesterov is look_ahead=1; leave one out"
            raise ValueError(message)
        return self

    @property
    def worker_optimizer(self) -> Sgd:
        """What workers make of their gradients; looking ahead it has the rate in the velocity, as DANA-Slim."""
        return Sgd(
            momentum=self.momentum,
            look_ahead=self.look_ahead or int(self.nesterov),
            weight_decay=self.weight_decay,
            scaled=self.look_ahead > 0,
        )
