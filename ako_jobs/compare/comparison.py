"""A comparison: which jobs are run, with what settings, on how many nodes, with how many seeds.

It is a value that a file or a command line gives; expanding it into runs starts nothing.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from ako_jobs.cluster_options import ClusterOptions, Count, no_boolean
from dataflow.errors import ConfigError, refusal, suggest
from dataflow.home import expanded

NODES = "nodes"
"""The setting of a variant or a sweep that says how many nodes a run has."""


def _text(value: object) -> str:
    """A value of a file as a command line would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    message = 'write a number, true, false or "text"'
    raise ValueError(message)


Text = Annotated[str, BeforeValidator(_text)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Variant(_Part):
    """One of the jobs that are compared.

    Args:
        job: what `load_job` takes.
        settings: its own settings by key. `nodes` and, if the comparison is simulated, the keys of `ClusterOptions`
            are about the cluster that it runs on.
    """

    job: str
    settings: Mapping[str, Text] = {}


class Comparison(_Part):
    """What is compared.

    Args:
        variants: the jobs by the names that tables and pictures give them.
        settings: settings of all jobs, where a variant has none of its own.
        nodes: how many nodes each runs on.
        cluster: what is simulated; None if real nodes run the jobs.
        master: ``host:port`` of the master whose nodes do; if empty, processes of this machine.
        lab: what the lab is like whose hosts do, in words; empty if they do not.
        sweep: values by key, for keys as in a variant's settings: every variant is run with each combination.
        seeds: how many times each is run, with seeds from 0 on.
        target: the test accuracy to which the time is measured.
    """

    variants: Annotated[Mapping[str, Variant], Field(min_length=1)]
    settings: Mapping[str, Text] = {}
    nodes: Count = 4
    cluster: ClusterOptions | None = None
    master: str = ""
    lab: str = ""
    sweep: Mapping[str, Annotated[tuple[Text, ...], Field(min_length=1)]] = {}
    seeds: Count = 3
    target: Annotated[float | None, Field(gt=0, le=1), BeforeValidator(no_boolean)] = None

    @classmethod
    def parse(cls, said: Mapping[str, Any], where: str = "") -> Self:
        """The comparison that is described.

        Raises:
            ConfigError: an unknown key, with the nearest known one, a value that does not fit, or what cannot be meant.
        """
        try:
            comparison = cls.model_validate(said)
        except ValidationError as error:
            raise _explained(error.errors()[0], where) from None
        comparison.cases()
        return comparison

    def cases(self) -> tuple[Case, ...]:
        """What is run with every seed: the variants at the first combination of swept values, at the second, and so on.

        Raises:
            ConfigError: what is said cannot be meant.
        """
        self._check()
        points = [
            tuple(point) for point in product(*([(key, value) for value in self.sweep[key]] for key in self.sweep))
        ]
        return tuple(
            _case(self, number, name, point)
            for number, (point, name) in enumerate(product(points, self.variants), start=1)
        )

    def same_runs(self, other: Comparison) -> bool:
        """Whether the runs of one are among those of the other: seeds and target do not change a run."""
        free = {"seeds", "target"}
        return self.model_dump(exclude=free) == other.model_dump(exclude=free)

    def _check(self) -> None:
        if self.cluster is not None and self.master:
            what = "a simulation runs in this process, not at a master"
            raise ConfigError(what, got=self.master, fix="leave out one of them")
        if self.lab and (self.cluster is not None or self.master):
            what = "jobs run in the lab, simulated, or at a master"
            raise ConfigError(what, fix="leave out --sim and --master, or --lab")
        about_cluster = {NODES, *(ClusterOptions.model_fields if self.cluster is not None else ())}
        for key in sorted(about_cluster & self.settings.keys()):
            fix = f"write --{key.replace('_', '-')}; it may be swept, and be a variant's own"
            raise ConfigError(what=f"{key} is about the cluster, not a setting of every job", fix=fix)
        for name, variant in self.variants.items():
            for key in sorted(self.sweep.keys() & variant.settings.keys()):
                what = f"{key} is swept, and the variant {name!r} has a value of its own"
                raise ConfigError(what, got=variant.settings[key], fix="leave out one of them")
        given = {*self.settings, *self.sweep, *(key for each in self.variants.values() for key in each.settings)}
        if "seed" in given:
            raise ConfigError(
                what="seeds are counted, not given", fix="leave out seed; --seeds 3 runs seeds 0, 1 and 2"
            )
        for key, values in self.sweep.items():
            twice = [value for number, value in enumerate(values) if value in values[:number]]
            if twice:
                raise ConfigError(what=f"the sweep over {key} has a value twice", got=twice[0], fix="give it once")


@dataclass(frozen=True)
class Case:
    """A variant at one combination of swept values: what one row of the table is about.

    Args:
        variant: its name.
        point: the swept keys and their values.
        folder: name of the folder of its runs, unlike that of any other case of the comparison.
        job: what `load_job` takes.
        settings: all of the job's settings but the seed.
        nodes: how many nodes.
        cluster: what is simulated, if anything is.
    """

    variant: str
    point: tuple[tuple[str, str], ...]
    folder: str
    job: str
    settings: Mapping[str, str]
    nodes: int
    cluster: ClusterOptions | None

    @property
    def name(self) -> str:
        """For people."""
        return " ".join((self.variant, *(f"{key}={value}" for key, value in self.point)))


def read_comparison(path: Path) -> Comparison:
    """The comparison in a TOML file; job files are looked for from its folder.

    Raises:
        ConfigError: it cannot be read, or is no comparison.
    """
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        fix = "check its path, and that it is TOML as in examples/compare_digits.toml"
        raise ConfigError(what=f"the comparison cannot be read: {error}", got=str(path), fix=fix) from error
    comparison = Comparison.parse(said, str(path))
    variants = {
        name: variant.model_copy(update={"job": _from(path.absolute().parent, variant.job)})
        for name, variant in comparison.variants.items()
    }
    return comparison.model_copy(update={"variants": variants})


def _from(folder: Path, job: str) -> str:
    place, colon, function = job.partition(":")
    return f"{folder / expanded(place)}{colon}{function}" if place.endswith(".py") else job


def _case(comparison: Comparison, number: int, name: str, point: tuple[tuple[str, str], ...]) -> Case:
    variant, nodes, cluster = comparison.variants[name], comparison.nodes, comparison.cluster
    settings = dict(comparison.settings)
    for key, value in (*variant.settings.items(), *point):
        if key == NODES:
            nodes = _nodes(value)
        elif cluster is not None and key in ClusterOptions.model_fields:
            cluster = cluster.plus(key, value)
        else:
            settings[key] = value
    words = "-".join(re.findall(r"[A-Za-z0-9]+", " ".join((name, *(f"{key} {value}" for key, value in point)))))
    return Case(name, point, f"{number:02}-{words[:60]}", variant.job, settings, nodes, cluster)


def _nodes(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ConfigError(what="nodes: must be a positive integer", got=text)
    return int(text)


_FIELDS = {"variants": Variant.model_fields, "cluster": ClusterOptions.model_fields}
"""Those of a comparison's parts, by their key."""


_IN_TOML = {
    "missing": "is missing",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "tuple_type": "must be a list, such as [1, 2]",
    "string_type": 'must be "text"',
    "too_short": "must hold a value",
}
"""What is wrong with a value of a file, by the type of pydantic's error; its own words are Python's."""


def _explained(error: ErrorDetails, where: str) -> ConfigError:
    """What is wrong, by the key that the user has written."""
    path = [str(part) for part in error["loc"]]
    if error["type"] == "extra_forbidden":
        known = _FIELDS.get(path[0], Comparison.model_fields) if len(path) > 1 else Comparison.model_fields
        return ConfigError(what="unknown key", got=".".join(path), where=where, fix=suggest(path[-1], known))
    if path == ["variants"] and error["type"] != "dict_type":
        fix = 'name a job, as in `ako compare ako "parameter_server servers=1"`'
        return ConfigError(what="there is nothing to compare", where=where, fix=fix)
    got = error["input"] if error["type"] != "missing" else None
    what = _IN_TOML.get(error["type"]) or refusal(error)
    return ConfigError(what=f"{'.'.join(path)}: {what}", got=got, where=where)
