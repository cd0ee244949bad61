"""Jobs by name, file or function: what ``ako run`` is given, made into what a master takes.

A job is a `Config` and a function ``build(config) -> LogicalGraph``, in a module of its own. Invariant: whatever the
user's code raises while it is imported or builds comes out as one `AkoError` that names the user's line.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from ako_jobs.built_in import BUILT_IN
from ako_jobs.effective_rate import effective_rate
from dataflow import Bundle, JobSpec, Keep, StopRules, compile_graph, make_bundle, place
from dataflow.errors import AkoError, ConfigError, OperatorError, ToldToEnd, in_words, suggest
from dataflow.graph.checks import check
from dataflow.graph.logical import LogicalGraph
from dataflow.home import expanded
from dataflow.operators_api import WATCHDOG_S, qualified_name
from operators.compute import Compute
from operators.dnn.torch_spec import INSTALL_TORCH
from operators.source import Source

OURS = frozenset({"ako_jobs", "dataflow", "operators"})
SHARED_REPLICA = "operators.shared_replica:SharedReplica"
"""By name, so that only jobs of trees import what trees need."""

_BY_STEP = frozenset({"operators.apply:ApplyMean", "operators.serve:ServeMean", "operators.send:SendChanges"})
"""By name, likewise: operators whose learning rate goes by the number of a step, not by the epochs that were made."""

_FORMS = "a job is a built-in name, a file such as my_job.py, or module:function"


@dataclass(frozen=True)
class Job:
    """A job that can be configured and built.

    Args:
        name: for people.
        config: its settings; a class with a classmethod ``parse(settings)``. Its field `seed` and its methods
            `stop_rules` and `keep` are used if it has them.
        build: makes the graph from a configuration.
        folder: whose Python files travel with the job; None if it needs installed modules only.
        include: further files and folders below `folder` that travel with it.
    """

    name: str
    config: type[BaseModel]
    build: Callable[[Any], LogicalGraph]
    folder: Path | None = None
    include: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """A job that is ready to be submitted: `spec`, the code it needs, and its checked graph."""

    spec: JobSpec
    bundle: Bundle | None
    graph: LogicalGraph

    @property
    def epochs(self) -> float | None:
        """Passes over the data that it makes at most; None if its settings have no number of these."""
        epochs = self.spec.config.get("epochs")
        return float(epochs) if isinstance(epochs, int | float) else None

    @property
    def our_modules(self) -> list[str]:
        """Modules of ours that the graph names: those of its operators and state elements."""
        names = [*(each.kind for each in self.graph.operators), *(each.factory for each in self.graph.elements)]
        modules = {name.partition(":")[0] for name in names}
        return sorted(module for module in modules if module.partition(".")[0] in OURS)

    def recorded(self) -> Prepared:
        """The same job, whose run can be replayed: its record is among the artifacts.

        Raises:
            ConfigError: nodes may join it.
        """
        if self.spec.max_nodes is not None:
            what = "a run that nodes may join cannot be replayed: nobody knows what machines they are"
            raise ConfigError(what, got=f"max_nodes={self.spec.max_nodes}", fix="leave out --record, or max_nodes")
        return replace(self, spec=self.spec.model_copy(update={"record": True}))


def load_job(text: str) -> Job:
    """The job that `text` names: a built-in name, a file ``my_job.py``, or ``module:function``.

    The folder of a file is put on `sys.path`, so that the names of its modules are the same here and on nodes. The
    settings are the class in the annotation of the function's first parameter, else the module's `Config`. A module
    may name further files that travel with the job in a tuple `INCLUDE`.

    Raises:
        ConfigError: there is no such job, or its code cannot be used.
    """
    if text in BUILT_IN:
        return _job(text, importlib.import_module(BUILT_IN[text]), "build")
    place, _, function = text.partition(":")
    if place.endswith(".py"):
        path = expanded(place).resolve()
        if not path.is_file():
            fix = f"check its path; a relative one begins at {Path.cwd()}"
            raise ConfigError(what="there is no such job file", got=place, fix=fix)
        return _job(path.stem, _import_file(path), function or "build", path.parent)
    if not function:
        fix = suggest(text, BUILT_IN)
        raise ConfigError(what="there is no such job", got=text, fix=f"{fix}; {_FORMS}")
    return _job(place.rpartition(".")[2] if function == "build" else function, _import_module(place), function)


def prepare(job: Job, settings: Mapping[str, Any], nodes: int) -> Prepared:
    """Configure, build and check a job; nothing is started.

    Args:
        job: the job.
        settings: values by key, as the job's configuration takes them; text will do.
        nodes: how many nodes it is to run on.

    Raises:
        ConfigError: a setting is wrong, or the user's code failed.
        DataError: the data set cannot be read.
        GraphError: the graph fails its checks.
        PlanError: the graph does not fit the number of nodes.
        BundleError: the code breaks a bundle's limits.
    """
    with user_code(f"the job {job.name!r}", job.folder):
        config: Any = job.config.parse(dict(settings))  # type: ignore[attr-defined]
        graph = job.build(config)
        stop = config.stop_rules() if hasattr(config, "stop_rules") else StopRules()
        keep = config.keep() if hasattr(config, "keep") else Keep()
    if not isinstance(graph, LogicalGraph):
        what = f"the job {job.name!r} builds no LogicalGraph"
        raise ConfigError(what, got=type(graph).__name__, where=_line_of(job.build), fix="return the graph from build")
    _check_importable(graph)
    check(graph)
    compile_graph(graph, nodes)
    rate = effective_rate(graph, config, nodes)
    with user_code(f"the configuration of the job {job.name!r}", job.folder):
        spec = JobSpec(
            name=_own_name(job),
            graph=graph,
            nodes=nodes,
            seed=getattr(config, "seed", 0),
            stop=stop,
            keep=keep,
            config=config.model_dump(mode="json"),
            warnings=(rate,) if rate else (),
            min_nodes=getattr(config, "min_nodes", 1),
            max_nodes=getattr(config, "max_nodes", None),
            watchdog_s=config.watchdog_s() if hasattr(config, "watchdog_s") else WATCHDOG_S,
        )
    check_fits(spec)
    return Prepared(spec, make_bundle(job.folder, job.include) if job.folder else None, graph)


def check_fits(spec: JobSpec, loaders: Collection[str] | None = None) -> None:
    """Refuse, before any process is started, a job that does not fit its number of nodes.

    Args:
        spec: the job.
        loaders: those data sets alone are looked at that these open; see `DataRef`. None: all.

    Raises:
        ConfigError: it does not, and why.
        PlanError: its graph does not.
        DataError: its data set cannot be read.
    """
    spec.check_counts()
    spec.plan()  # which refuses jobs that no node can join
    _check_pace(spec)
    _check_topology(spec.graph, spec.nodes)
    _check_data(spec, loaders)


def _own_name(job: Job) -> str:
    """A job's name, which is never that of a built-in job if it is another: by that name its code is found again."""
    module = getattr(job.build, "__module__", "")
    if BUILT_IN.get(job.name) in (None, module):
        return job.name
    return f"{module}:{getattr(job.build, '__name__', 'build')}"


def _job(name: str, module: ModuleType, function: str, folder: Path | None = None) -> Job:
    build = getattr(module, function, None)
    if not callable(build):
        fix = f"define {function}(config) there and return its LogicalGraph"
        raise ConfigError(what=f"the job has no function {function!r}", where=str(module.__file__), fix=fix)
    with user_code(f"the job {name!r}", folder):
        config = _config_of(build) or getattr(module, "Config", None)
    if not (isinstance(config, type) and issubclass(config, BaseModel) and hasattr(config, "parse")):
        fix = "define class Config(TrainingConfig) there, from ako_jobs.config"
        what = f"the job {name!r} has " + ("no Config" if config is None else "a Config that is no TrainingConfig")
        raise ConfigError(what, got=config, where=_line_of(build), fix=fix)
    include = getattr(module, "INCLUDE", ())
    if not isinstance(include, tuple | list) or not all(isinstance(each, str) for each in include):
        fix = 'write it like INCLUDE = ("words.txt",)'
        raise ConfigError(what="INCLUDE is not a tuple of paths", got=include, where=str(module.__file__), fix=fix)
    return Job(name, config, build, folder, tuple(include))


def _config_of(build: Callable[..., Any]) -> type[BaseModel] | None:
    """The class in the annotation of the first parameter."""
    if not inspect.isfunction(build):
        return None
    annotations, parameters = typing.get_type_hints(build), list(inspect.signature(build).parameters)
    found = annotations.get(parameters[0]) if parameters else None
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _import_file(path: Path) -> ModuleType:
    files = {file.stem: file for file in sorted(path.parent.glob("*.py"))}
    _check_names(path, files)
    folder = str(path.parent)
    sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]
    for stem, file in files.items():
        known = sys.modules.get(stem)
        if known is not None and getattr(known, "__file__", None) != str(file):
            del sys.modules[stem]  # of a job in another folder
    importlib.invalidate_caches()
    with user_code(path.name, path.parent):
        return importlib.import_module(path.stem)


def _check_names(path: Path, files: Mapping[str, Path]) -> None:
    """Refuse files that would stand in for other modules here and on every node."""
    if not path.stem.isidentifier():
        raise ConfigError(what="a job file's name must be a Python name", got=path.name, fix="rename it, as my_job.py")
    installed = packages_distributions()
    for stem, file in files.items():
        owner = "Python's own" if stem in sys.stdlib_module_names else ", ".join(installed.get(stem, ()))
        if owner or stem in OURS:
            what = f"{file.name} would hide the module {stem!r} ({owner or 'ako-dataflow'}) from everybody"
            fix = "rename it" if file == path else "rename it, or put the job into a folder of its own"
            raise ConfigError(what, where=str(file), fix=fix)


def _import_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(what="there is no such job", got=name, fix=_FORMS)
    with user_code(f"module {name!r}", None):
        if name.partition(".")[0] not in sys.modules and importlib.util.find_spec(name.partition(".")[0]) is None:
            fix = "install it, or name the file: my_job.py"
            raise ConfigError(what="there is no such module", got=name, fix=fix)
        return importlib.import_module(name)


def _check_importable(graph: LogicalGraph) -> None:
    named = [(operator.kind, operator.where) for operator in graph.operators]
    for kind, where in [*named, *((element.factory, element.where) for element in graph.elements)]:
        if kind.startswith("__main__:"):
            what = f"{kind.removeprefix('__main__:')} is defined in the main program, where no node can find it"
            raise ConfigError(what, where=where, fix="move the class to a file of the job's folder")


def _check_pace(spec: JobSpec) -> None:
    """Refuse a learning rate that goes by how many workers there are, where that is not known at the start."""
    changes = spec.config.get("schedule", "constant") != "constant" or spec.config.get("warmup", 0)
    by_step = any(operator.kind in _BY_STEP for operator in spec.graph.operators)
    if spec.places > spec.nodes and changes and by_step:
        what = "a learning rate that changes goes by steps of as many workers as there are, and more may come"
        fix = "leave out schedule and warmup, or max_nodes; or leave out consistency=bsp and pull_codec"
        raise ConfigError(what, got=f"max_nodes={spec.max_nodes}", fix=fix)


def _check_data(spec: JobSpec, loaders: Collection[str] | None) -> None:
    """Refuse what every node's source would refuse, and local steps for which a worker's share is too small.

    Sources refuse too little data to share, and a warm-up of more nodes.
    """
    computes = [operator for operator in spec.graph.operators if operator.kind == qualified_name(Compute)]
    walking = {each.role for each in computes if Compute.model_validate_json(each.params).mini_batch is not None}
    for operator in spec.graph.operators:
        if operator.kind == qualified_name(Source):
            source = Source.model_validate_json(operator.params)
            if loaders is None or source.data.loader in loaders:
                workers = len(place(spec.graph, spec.places)[operator.role])
                share = len(source.training_rows(workers, spec.seed)) // workers
                if operator.role in walking and source.batch > share:
                    what = f"local_steps make gradients of {source.batch} images, and a worker's share is {share}"
                    raise ConfigError(what, fix="use fewer local_steps, a smaller batch or fewer workers")


def _check_topology(graph: LogicalGraph, nodes: int) -> None:
    """Refuse what every node would refuse: a topology that is no tree of the nodes."""
    for element in graph.elements:
        if element.factory == SHARED_REPLICA:
            module, _, name = SHARED_REPLICA.partition(":")
            shared = getattr(importlib.import_module(module), name).model_validate_json(element.params)
            for topology in (shared.topology, shared.then):
                if topology is not None:
                    topology.of(len(place(graph, nodes)[element.role]))


@contextmanager
def user_code(what: str, folder: Path | None) -> Iterator[None]:
    """Turn whatever the user's code raises into one error with the user's line."""
    try:
        yield
    except OperatorError as error:
        # Nothing runs yet: this is bad input, not a job that failed.
        raise ConfigError(what=error.what, got=error.got, where=error.where, fix=error.fix) from error
    except (AkoError, ToldToEnd):
        raise
    except (Exception, SystemExit) as error:  # one that calls sys.exit would end the command as if all were well
        message = f"{what} raised {type(error).__name__}: {in_words(error)}"
        fix = INSTALL_TORCH if isinstance(error, ModuleNotFoundError) and error.name == "torch" else ""
        raise ConfigError(message, where=_line_in(error, folder), fix=fix) from error


def _line_in(error: BaseException, folder: Path | None) -> str:
    """``file:line`` of the last line of the user's that had a part in an error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if folder is not None and Path(frame.filename).is_relative_to(folder)]
    last = (users or frames)[-1]
    return f"{last.filename}:{last.lineno}"


def _line_of(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)
