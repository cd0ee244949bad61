"""Jobs that go on from a checkpoint of another: the same job, on other nodes or with other settings if need be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ako_jobs.built_in import BUILT_IN
from ako_jobs.datasets import LOADER
from ako_jobs.jobs import Prepared, check_fits, load_job, prepare
from dataflow import JobSpec, LogicalGraph, Resume, compile_graph, tensor_types_of
from dataflow.errors import ConfigError, DataError

FIXED = ("data", "seed", "batch", "local_steps", "holdout")
"""Settings by which it is known which images have been seen: they stay."""


def resumed(
    spec: JobSpec, resume: Resume, *, nodes: int | None = None, settings: Mapping[str, Any] | None = None, job: str = ""
) -> Prepared:
    """A job that goes on from a checkpoint of the one with this specification.

    Args:
        spec: of the job that was.
        resume: which checkpoint.
        nodes: how many nodes it goes on with; as many as before if None.
        settings: values by key that differ from those of then.
        job: what `load_job` takes, if the job that was is not a built-in one and settings differ.

    Raises:
        ConfigError: a setting is wrong, or cannot differ; or the job's code is not named, or nobody needs it.
        AkoError: see `prepare`.
    """
    count = nodes or spec.nodes
    if not settings:
        if job:
            what = "the job's code is for other settings, and goes on as it was without any"
            raise ConfigError(what, got=job, fix="say which settings change, or leave out --job")
        graph = without_warm_start(spec.graph)
        compile_graph(graph, count)
        most = None if spec.max_nodes is None else max(count, spec.max_nodes)
        update = {"graph": graph, "nodes": count, "max_nodes": most, "resume": resume, "record": False, "warnings": ()}
        changed = spec.model_copy(update=update)
        if count != spec.nodes:
            # Data that are on the nodes alone they look at themselves, and code that a job merely names is not run.
            with suppress(DataError):
                check_fits(changed, loaders=(LOADER,))
        return Prepared(changed, None, graph)
    for key in FIXED:
        if key in settings and str(settings[key]) != str(spec.config.get(key)):
            what = f"{key} stays what it was: it decides which images have been seen"
            raise ConfigError(what, got=settings[key], fix="leave it out, or run a new job")
    if not job and spec.name not in BUILT_IN:
        raise ConfigError(
            what="the job's code is needed to change its settings", got=spec.name, fix="add --job my_job.py"
        )
    before = {key: value for key, value in spec.config.items() if value is not None}
    return going_on(prepare(load_job(job or spec.name), before | dict(settings), count), resume)


def going_on(prepared: Prepared, resume: Resume) -> Prepared:
    """A prepared job that goes on from a checkpoint, if its state is like that."""
    graph, spec = without_warm_start(prepared.graph), prepared.spec
    resume = resume.model_copy(update={"tensors": tensor_types_of(graph, spec.nodes, spec.seed)})
    return Prepared(spec.model_copy(update={"graph": graph, "resume": resume, "record": False}), prepared.bundle, graph)


def without_warm_start(graph: LogicalGraph) -> LogicalGraph:
    """A graph whose state begins without training: what it would give is replaced by the checkpoint's."""
    elements = []
    for spec in graph.elements:
        params = json.loads(spec.params)
        if "warm_start" in params:
            params["warm_start"] = None
        elements.append(spec.model_copy(update={"params": json.dumps(params)}))
    return graph.model_copy(update={"elements": tuple(elements)})
