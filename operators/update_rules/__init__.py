"""Update rules of servers: what becomes of a worker's gradient (dana.txt). docs/update_rules.md has them all."""

from typing import Annotated

from pydantic import Field

from operators.update_rules.compensated import DanaDc, DcAsgd
from operators.update_rules.momentum import DanaZero, Lwp, MultiAsgd, NagAsgd
from operators.update_rules.plain import Asgd, Easgd, GapAware, StalenessAware
from operators.update_rules.rule import Memory, Push, Rule
from operators.update_rules.yellowfin import YellowFin

AnyRule = Annotated[
    Asgd | NagAsgd | MultiAsgd | DcAsgd | Lwp | YellowFin | DanaZero | DanaDc | GapAware | StalenessAware | Easgd,
    Field(discriminator="kind"),
]
"""A rule as a parameter of operators."""

__all__ = [
    "AnyRule",
    "Asgd",
    "DanaDc",
    "DanaZero",
    "DcAsgd",
    "Easgd",
    "GapAware",
    "Lwp",
    "Memory",
    "MultiAsgd",
    "NagAsgd",
    "Push",
    "Rule",
    "StalenessAware",
    "YellowFin",
]
