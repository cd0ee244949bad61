"""Where a master finds the checkpoints of jobs, and which one a job goes on from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from dataflow.clock import Clock
from dataflow.engine.checkpoints import KeptFile, Manifest
from dataflow.engine.coordination import CheckpointFound
from dataflow.engine.job_life import ENDED, JobState
from dataflow.engine.resumption import EVERY_KIND, check_fits, resumption
from dataflow.errors import AkoError, CheckpointError, ConfigError
from dataflow.plan.job import JobSpec, Resume, needed_nodes, nodes_with_parts, summed_nodes, vacant_nodes
from dataflow.plan.physical import PhysicalPlan
from dataflow.runtime.bundle import Bundle
from dataflow.runtime.checkpoint_store import (
    CheckpointStore,
    Search,
    contents,
    load_manifest,
    newest_whole,
    none_whole,
    remove,
    search,
)
from dataflow.runtime.folders import Folder, Pieces, open_folder
from dataflow.runtime.store import Store
from dataflow.runtime.version import VERSION
from dataflow.runtime.wire import CHUNK_NBYTES
from dataflow.state import StateKind
from dataflow.transport.generated import control_pb2 as pb

_LOOKS, _LOOK_S = 30, 1.0
"""So often, and so many seconds apart, it is looked again for checkpoints that cannot be read."""


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
    try:
        manifest, broken = await asyncio.to_thread(newest_whole, folder, resume.number)
    except CheckpointError as error:
        raise _with_earlier(error, store, resume) from error
    check_fits(manifest, spec.plan(), resume.tensors)
    resume = resume.model_copy(update={"number": manifest.number})
    return spec.model_copy(update={"resume": resume, "warnings": (*spec.warnings, *broken)}), bundle


def _with_earlier(error: CheckpointError, store: Store, resume: Resume) -> CheckpointError:
    """An error that names what a job without a whole checkpoint had gone on from itself, if it had."""
    if not resume.job or resume.folder:
        return error
    before = store.job(store.find(resume.job))  # it may have been removed meanwhile
    earlier = JobSpec.model_validate_json(before.spec_json).resume
    if earlier is None:
        return error
    again = f"ako resume {earlier.job}" if earlier.job else f"ako run JOB --resume {earlier.folder}"
    fix = f"it had gone on from checkpoint {earlier.number} of another, from where you may go on: {again}"
    return type(error)(error.what, got=error.got, where=error.where, fix=fix)


async def look_again(store: Store, job: str, spec: JobSpec) -> tuple[CheckpointFound, list[str]]:
    """Which checkpoint a job goes on from whose nodes have all died, and what is wrong with the newer ones.

    Broken ones are removed if it goes on: it makes their like again. What cannot be read is waited for, for half a
    minute, since the machines may just have come back; then the job does not go on, so that nothing is lost which
    somebody might bring back. If it has kept none, it is the one that it was resumed from itself.
    """
    try:
        folder = checkpoints_of(store, job, spec)
    except AkoError as error:
        return CheckpointFound(None, str(error)), []

    async def look() -> Search:
        return await asyncio.to_thread(search, folder, beyond_unreadable=False)

    found = await look()
    for _ in range(_LOOKS):
        if not found.unsure:
            break
        await asyncio.sleep(_LOOK_S)
        found = await look()
    before = None if found.unsure or spec.resume is None else CheckpointFound(spec.resume.number, own=False)
    goes_on = before if found.manifest is None else CheckpointFound(found.manifest.number)
    if goes_on is None:
        return CheckpointFound(None, str(none_whole(folder, found))), []
    await asyncio.to_thread(remove, folder, found.left_out)
    return goes_on, found.warnings


def goes_on_from(
    job: str, spec: JobSpec, node: int, incarnation: int, *, anew: bool = False
) -> tuple[Resume, frozenset[StateKind]] | None:
    """Which checkpoint a node of a job goes on from when it is started, and with what; None if it begins anew.

    A node that is started again has what is everybody's from the others. Only a part of a whole that it alone held is
    that of the job's newest checkpoint; before the job has begun (`anew`) it is what it was to begin with.
    """
    if not incarnation:
        return None if spec.resume is None else (spec.resume, EVERY_KIND)
    if node not in needed_nodes(spec) or (anew and spec.resume is None):
        return None
    if anew and spec.resume is not None:
        return spec.resume, frozenset({StateKind.PARTITIONED})
    return Resume(job=job), frozenset({StateKind.PARTITIONED})


async def state_chunks(
    store: Store, resume: Resume, plan: PhysicalPlan, node: int, kinds: frozenset[StateKind]
) -> AsyncGenerator[pb.StateChunk, None]:
    """What a node is sent to go on from a checkpoint: which one, and its files in pieces; or why it cannot.

    Args:
        store: knows where checkpoints are.
        resume: which checkpoint; the newest that is whole if it has no number.
        plan: the plan that goes on.
        node: number of the node.
        kinds: of the state elements that go on.
    """
    number = resume.number
    try:
        folder = resumed_folder(store, resume)
        if number is None:
            manifest, _ = await asyncio.to_thread(newest_whole, folder)
            number = manifest.number
        else:  # it was verified when it was chosen, which may be long ago
            manifest = await asyncio.to_thread(load_manifest, folder, number)
        how = resumption(manifest, plan, node, kinds=kinds)
        yield pb.StateChunk(resumption_json=how.model_dump_json().encode())
        for file in how.files:
            async with aclosing(read_aside(contents(folder, number, file))) as pieces:
                async for piece in pieces:
                    for start in range(0, len(piece), CHUNK_NBYTES):
                        yield pb.StateChunk(data=piece[start : start + CHUNK_NBYTES])
    except (AkoError, OSError) as error:
        which = "" if number is None else f"checkpoint {number} cannot be used: "
        yield pb.StateChunk(failure=f"{which}{error}")


async def read_aside(pieces: Pieces) -> AsyncGenerator[bytes, None]:
    """Pieces of a file, each read on another thread; the file is closed in the end, whoever is cancelled meanwhile."""
    reading: asyncio.Future[bytes] | None = None
    try:
        while True:
            reading = asyncio.ensure_future(asyncio.to_thread(next, pieces, b""))
            piece = await asyncio.shield(reading)
            if not piece:
                return
            yield piece
    finally:
        if reading is not None:
            await asyncio.wait((reading,))  # a file that is being read cannot be closed
        pieces.close()


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

    nodes, vacant = frozenset(node.index for node in plan.nodes), vacant_nodes(spec)
    inherited = {node: plan.nodes[node].name for node in summed_nodes(spec) - needed_nodes(spec)}
    return lambda warn: CheckpointStore(
        folder,
        keep=spec.keep.last,
        manifest=manifest,
        nodes=nodes,
        needed=nodes_with_parts(spec) - vacant,
        inherited=inherited,
        vacant=vacant & inherited.keys(),
        warn=warn,
    )
