"""Where a master finds the checkpoints of jobs, and which one a job goes on from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dataflow.clock import Clock
from dataflow.engine.checkpoints import KeptFile, Manifest, check_fits
from dataflow.engine.coordinator import ENDED, JobState
from dataflow.errors import ConfigError
from dataflow.plan.compile import compile_graph
from dataflow.plan.job import JobSpec, Resume
from dataflow.plan.physical import PhysicalPlan
from dataflow.runtime.bundle import Bundle
from dataflow.runtime.checkpoint_store import CheckpointStore, newest_whole
from dataflow.runtime.folders import Folder, open_folder
from dataflow.runtime.store import Store
from dataflow.runtime.version import VERSION


def checkpoints_of(store: Store, job: str, spec: JobSpec) -> Folder:
    """The folder of a job's checkpoints.

    Raises:
        ConfigError: the job keeps them at an address that cannot be used.
    """
    place = spec.keep.place or str(store.checkpoints)
    return open_folder(f"{place.rstrip('/')}/{job}")


def resumed_folder(store: Store, resume: Resume) -> Folder:
    """The folder of the checkpoints that a job goes on from.

    Raises:
        ConfigError: their address cannot be used.
    """
    if resume.folder:
        return open_folder(resume.folder)
    before = store.job(resume.job)
    return checkpoints_of(store, resume.job, JobSpec.model_validate_json(before.spec_json))


async def choose(store: Store, spec: JobSpec, bundle: Bundle) -> tuple[JobSpec, Bundle]:
    """A job whose checkpoint is chosen and whole, and its bundle.

    Raises:
        ConfigError: the job to go on from still runs, or the address of its checkpoints cannot be used.
        CheckpointError: there is no whole checkpoint, or none that fits.
        MasterError: there is no such job.
    """
    resume = spec.resume
    if resume is None:
        return spec, bundle
    if resume.job:
        resume = resume.model_copy(update={"job": store.find(resume.job)})
        before = store.job(resume.job)
        if JobState(before.status.state) not in ENDED:
            fix = f"end it first: ako cancel {resume.job}"
            raise ConfigError(what=f"the job is {before.status.state}, and goes on by itself", got=resume.job, fix=fix)
        bundle = bundle if bundle.digest else before.bundle
    folder = resumed_folder(store, resume)
    manifest, broken = await asyncio.to_thread(newest_whole, folder, resume.number)
    check_fits(manifest, compile_graph(spec.graph, spec.nodes, seed=spec.seed), resume.tensors)
    resume = resume.model_copy(update={"number": manifest.number})
    return spec.model_copy(update={"resume": resume, "warnings": (*spec.warnings, *broken)}), bundle


def keeping(
    folder: Folder, job: str, spec: JobSpec, plan: PhysicalPlan, clock: Clock
) -> Callable[[Callable[[str], None]], CheckpointStore]:
    """What makes the store of a job's checkpoints, given what it warns with."""
    roles = {role: len(members) for role, members in plan.members().items()}
    digest = plan.digest()

    def manifest(number: int, files: tuple[KeptFile, ...]) -> Manifest:
        return Manifest(
            version=VERSION,
            job=job,
            number=number,
            plan=digest,
            seed=plan.seed,
            wall_s=clock.wall(),
            roles=roles,
            elements=plan.graph.elements,
            files=files,
        )

    nodes = frozenset(node.index for node in plan.nodes)
    return lambda warn: CheckpointStore(folder, keep=spec.keep.last, manifest=manifest, nodes=nodes, warn=warn)
