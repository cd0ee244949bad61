"""Whose functions the files of a run may name: ours, and those of the job that the user has named."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ako_jobs.jobs import OURS, Job, user_code
from dataflow.errors import DataError
from operators.dnn import TorchSpec


def require_own(name: str, what: str, job: Job | None, settings: Mapping[str, Any], where: Path) -> None:
    """Nothing, if a function that a file names is the job's: then it may be called.

    A function is the job's if it is defined in one of the files that travel with it, and which it has imported; or if
    its `Config`, with the settings of the run, names it as what makes its network, its loss or its data.

    Args:
        name: of the function, ``module:function``.
        what: what it makes.
        job: that the user has named, and whose code is trusted; None: none.
        settings: of the run.
        where: the file.

    Raises:
        DataError: it is not, or no job was named.
    """
    if job is None:
        what, fix = f"{what} is code of a job's own", "name that, and its code is run: ako predict DIR --job my_job.py"
        raise DataError(what, got=name, where=str(where), fix=fix)
    if not _defines(job, name) and name not in _named(job, settings):
        what, fix = f"{what} is no function of the job {job.name!r}", "have it in a file of the job's folder"
        raise DataError(what, got=name, where=str(where), fix=fix)


def _defines(job: Job, name: str) -> bool:
    """Whether a function is defined in the job's own files; they have been imported, and nothing else is."""
    module, _, path = name.partition(":")
    if not _is_own(job, module):
        return False
    found: Any = sys.modules[module]
    for part in path.split("."):
        found = getattr(found, part, None)
    return _is_own(job, getattr(found, "__module__", None) or "")


def _is_own(job: Job, module: str) -> bool:
    """Whether a module was imported from the job's own files, by the name that these have in its folder."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if module.partition(".")[0] in OURS:
        return False
    if job.folder is None or file is None:
        return module == job.build.__module__
    path, folder = Path(file).resolve(), job.folder.resolve()
    if path not in (
        folder.joinpath(*module.split(".")).with_suffix(".py"),
        folder.joinpath(*module.split("."), "__init__.py"),
    ):
        return False
    return path.parent == folder or any(path.is_relative_to(folder / each) for each in job.include)


def _named(job: Job, settings: Mapping[str, Any]) -> set[str]:
    """What a job's configuration names: functions that make its network, its loss and its data."""
    if not hasattr(job.config, "network") or not hasattr(job.config, "dataset"):
        return set()
    with user_code(f"the configuration of the job {job.name!r}", job.folder):
        config: Any = job.config.parse(dict(settings))  # type: ignore[attr-defined]
        network, names = config.network(), {config.dataset().loader}
    if isinstance(network, TorchSpec):
        names |= {network.factory, network.loss or network.factory}
    return names
