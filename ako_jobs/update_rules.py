"""Settings of jobs with an update rule: the rules by name, what each is made of, and what goes with it."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from ako_jobs.codec_settings import CodecConfig
from operators.optimizer import Sgd
from operators.update_rules import (
    AnyRule,
    Asgd,
    DanaDc,
    DanaZero,
    DcAsgd,
    Easgd,
    GapAware,
    Lwp,
    MultiAsgd,
    NagAsgd,
    StalenessAware,
    YellowFin,
)

RuleName = Literal[
    "asgd",
    "ssgd",
    "downpour",
    "nag-asgd",
    "multi-asgd",
    "lwp",
    "dc-asgd",
    "dc-asgd-a",
    "dana-zero",
    "dana-slim",
    "dana-dc",
    "yellowfin",
    "staleness-aware",
    "gap-aware",
    "easgd",
]

SLIM = "dana-slim"

_SERVERS: dict[str, type[AnyRule]] = {
    "nag-asgd": NagAsgd,
    "multi-asgd": MultiAsgd,
    "lwp": Lwp,
    "dc-asgd": DcAsgd,
    "dc-asgd-a": DcAsgd,
    "dana-zero": DanaZero,
    "dana-dc": DanaDc,
    "yellowfin": YellowFin,
    "staleness-aware": StalenessAware,
    "gap-aware": GapAware,
    "easgd": Easgd,
}
"""What servers do, where it is more than to subtract."""

_AT_SERVER = frozenset({"nag-asgd", "multi-asgd", "lwp", "dc-asgd", "dc-asgd-a", "dana-zero", "dana-dc", "yellowfin"})
"""Rules whose momentum, and weight decay, is the server's; with the others it is the worker's."""

_WITH_MOMENTUM = frozenset({"nag-asgd", "multi-asgd", "lwp", "dana-zero", SLIM, "dana-dc"})
"""Rules that are nothing without momentum."""

_WITH_LOCAL_STEPS = f"rule=asgd, downpour, ssgd or {SLIM}"

_OWN_DEFAULTS: dict[str, dict[str, float]] = {
    "dc-asgd": {"momentum": 0.95},
    "dc-asgd-a": {"momentum": 0.95},
    "yellowfin": {"lr": 1e-4},
}
"""Settings that rules begin with where they are not set, if not with those of all jobs (dana.txt, 5)."""

_AVERAGED = frozenset({"asgd", "ssgd", "downpour"})
"""Rules whose weights are averaged if `average` is not set; with others workers may hold something else than the model,
as with easgd or a look-ahead."""

_ONLY_WITH = {"dc_lambda": ("dc-asgd", "dc-asgd-a", "dana-dc"), "alpha": ("easgd",)}
"""Settings that only some rules have."""

_ADAPTIVE = 0.95
"""Share of the running mean square of gradients that DC-ASGD-a keeps (Zheng et al. 2017, 5)."""


class RuleConfig(CodecConfig):
    """Settings of a job with an update rule.

    Args:
        rule: how gradients move the servers' weights; ssgd, the mean of all, with consistency=bsp. See
            docs/update_rules.md.
        consistency: bsp (all wait for all; the mean is applied), ssp (bounded staleness) or async.
        n_push: gradients between two pushes (Downpour).
        n_fetch: gradients between two pulls; above 1 the worker also updates its own replica.
        dc_lambda: with rule=dc-asgd, dc-asgd-a and dana-dc, strength of the delay compensation.
        alpha: with rule=easgd, strength of the pull between a worker and the centre.
        momentum: share of its velocity that a worker keeps from gradient to gradient, or a server, as the rule says;
            0.95 with rule=dc-asgd and dc-asgd-a if not set.
        lr: learning rate of a gradient; with rule=yellowfin that of the start, 0.0001 if not set.
        nesterov: whether a worker's momentum looks ahead; rules that say so themselves refuse it.
    """

    rule: RuleName = "asgd"
    consistency: Literal["bsp", "ssp", "async"] = "async"
    n_push: int = Field(default=1, ge=1)
    n_fetch: int = Field(default=1, ge=1)
    dc_lambda: float = Field(default=2.0, ge=0)
    alpha: float = Field(default=0.15, gt=0, lt=1)

    @model_validator(mode="before")
    @classmethod
    def _told_by_others(cls, settings: Any) -> Any:
        """What a rule means for the other settings, and they for it, where it is not set."""
        if not isinstance(settings, dict):
            return settings
        found = dict(settings)
        if "rule" not in found:
            if found.get("consistency") == "bsp":
                found["rule"] = "ssgd"
            elif any(str(found.get(key, 1)) != "1" for key in ("n_push", "n_fetch")):
                found["rule"] = "downpour"
        elif found["rule"] == "ssgd":
            found.setdefault("consistency", "bsp")
        rule = str(found.get("rule", cls.model_fields["rule"].default))
        of_rule = {} if rule in _AVERAGED else {"average": 0.0}
        return of_rule | _OWN_DEFAULTS.get(rule, {}) | found

    @model_validator(mode="after")
    def _rule_fits(self) -> Self:
        message = self._misfit()
        if message:
            raise ValueError(message)
        return self

    @property
    def server_rule(self) -> AnyRule:
        """What an asynchronous server does; with asgd, downpour and dana-slim it subtracts."""
        kind = _SERVERS.get(self.rule, Asgd)
        known: dict[str, object] = {
            "momentum": self.momentum,
            "weight_decay": 0.0 if self._decays_at_workers else self.weight_decay,
            "strength": self.dc_lambda,
            "smoothing": _ADAPTIVE if self.rule == "dc-asgd-a" else None,
            "lr": self.lr,
            "alpha": self.alpha,
        }
        meant = {key: value for key, value in known.items() if key in kind.model_fields and value is not None}
        return kind.model_validate(meant)

    @property
    def worker_optimizer(self) -> Sgd:
        """What a worker makes of its gradients.

        All momentum has the rate in the velocity, so that earlier updates stay what they were when the rate changes
        (dana.txt, A.5). DANA-Slim is Nesterov's.
        """
        if self.rule in _AT_SERVER:
            return Sgd()
        decay = self.weight_decay if self._decays_at_workers else 0.0
        ahead = int(self.nesterov or self.rule == SLIM)
        return Sgd(momentum=self.momentum, look_ahead=ahead, weight_decay=decay, scaled=self.momentum > 0)

    @property
    def _decays_at_workers(self) -> bool:
        """Whether decay is part of workers' gradients: where it is to be in their velocities, or several are added up.

        It is on the weights that a gradient was computed on then, and else on the server's, as they are when it comes.
        """
        several = self.rule in ("ssgd", "downpour") or self.local_steps > 1
        return self.rule not in _AT_SERVER and (self.momentum > 0 or several)

    def _misfit(self) -> str:
        """What does not go together with the rule, and what to do; empty if all does."""
        rule, fields = self.rule, type(self).model_fields
        several = self.n_push > 1 or self.n_fetch > 1
        for key, rules in _ONLY_WITH.items():
            if rule not in rules and getattr(self, key) != fields[key].default:
                return f"{key} is for rule={' or '.join(rules)}, and rule is {rule}; leave it out"
        if rule == "ssgd" and self.consistency != "bsp":
            return f"rule=ssgd is consistency=bsp, not {self.consistency}; leave out consistency"
        if rule != "ssgd" and self.consistency == "bsp":
            return f"rule={rule} is asynchronous, and with consistency=bsp the mean is applied; leave out consistency"
        if several and rule not in ("downpour", "ssgd"):
            return f"rule={rule} needs a push and a pull per mini-batch; use n_push=1 n_fetch=1, or rule=downpour"
        if rule == "downpour" and not several:
            return "rule=downpour pushes and pulls after several mini-batches; add n_push=4 n_fetch=4, or use rule=asgd"
        if self.local_steps > 1 and rule in _AT_SERVER:
            return f"rule={rule} counts gradients of one mini-batch; leave out local_steps, or use {_WITH_LOCAL_STEPS}"
        if rule in _WITH_MOMENTUM and not self.momentum:
            return f"rule={rule} needs momentum; add momentum=0.9"
        if self.nesterov and (rule in _AT_SERVER or rule == SLIM):
            return f"rule={rule} says itself whether momentum looks ahead; leave out nesterov"
        return ""
