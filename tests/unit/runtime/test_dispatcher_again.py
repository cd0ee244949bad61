"""Jobs whose nodes have all died: what the master does until they run again."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dataflow.engine.checkpoints import encode
from dataflow.engine.events import Snapshot
from dataflow.engine.resumption import Resumption
from dataflow.errors import CheckpointError
from dataflow.plan.job import JobSpec, Resume
from dataflow.runtime import resuming
from dataflow.runtime.agent_session import AgentSession
from dataflow.runtime.bundle import Bundle
from dataflow.runtime.checkpoint_store import newest_whole, numbers
from dataflow.runtime.folders import LocalFolder
from dataflow.transport.generated import control_pb2 as pb
from tests.unit.runtime.dispatching import EMPTY, World, exited, held, on, play, start, told

NUMBER = 10


def keep(world: World, job: str, number: int = NUMBER) -> None:
    """A checkpoint of both nodes."""
    run = world.dispatcher.run(job)
    assert run is not None
    for node in range(2):
        data = encode(Snapshot(node, f"{node}", ("worker",), number, number, {}, {}))
        run.checkpoint(node, pb.CheckpointChunk(number=number, data=data, last=True))


def running(world: World) -> tuple[str, list[AgentSession]]:
    sessions = [world.attach("a", "x"), world.attach("b", "y")]
    job = world.submit("one", nodes=2)
    start(world, sessions, job)
    return job, sessions


async def going_on(world: World, job: str) -> tuple[bytes, Bundle]:
    """What is submitted to go on from a job, once its checkpoint is chosen."""
    spec = JobSpec.model_validate_json(world.store.job(job).spec_json)
    again = spec.model_copy(update={"resume": Resume(job=job)})
    return await world.dispatcher.chosen(again.model_dump_json().encode(), EMPTY)


async def resumed(world: World) -> tuple[str, str, list[AgentSession]]:
    """A job that was cancelled once it had kept a checkpoint, the one that goes on from it, and who runs that."""
    first, sessions = running(world)
    keep(world, first)
    await until_kept(LocalFolder(world.store.checkpoints / first), NUMBER)
    world.dispatcher.cancel(first)
    for session in sessions:
        world.dispatcher.heard(session, exited(first, 1))
    second = world.dispatcher.submit("again", *await going_on(world, first))
    start(world, sessions, second)
    return first, second, sessions


async def until(world: World, job: str, state: str) -> None:
    while world.state(job)[0] != state:
        await asyncio.sleep(0.005)


def die(world: World, sessions: list[AgentSession], job: str, number: int) -> None:
    """End the processes of all nodes that were started so often before."""
    for session in sessions:
        ended = pb.ProcessExited(job=job, start=number, status=-9)
        world.dispatcher.heard(session, pb.AgentMessage(exited=ended))


async def goes_on_from(session: AgentSession, number: int) -> int:
    """The checkpoint that a node is sent whose process was started so often before."""
    deployed = False
    while True:
        message = await session.next()
        assert message is not None
        deployed |= message.deploy.start == number
        if deployed and message.state.resumption_json:
            return Resumption.model_validate_json(message.state.resumption_json).steps[0]


async def is_refused(session: AgentSession) -> str:
    """Why a node is not sent the checkpoint that it was to go on from."""
    while (message := await session.next()) is not None and not message.state.failure:
        pass
    assert message is not None
    return message.state.failure


async def until_kept(folder: LocalFolder, number: int) -> None:
    while True:
        with suppress(CheckpointError):
            if newest_whole(folder)[0].number == number:
                break
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.1)  # for the word that the next may come


def states(world: World, job: str) -> list[str]:
    return [event.state.state for event in world.store.events(job, 0) if event.HasField("state")]


def warnings(world: World, job: str) -> list[str]:
    """What each warning of a job says first."""
    texts = (event.warning.text for event in world.store.events(job, 0) if event.HasField("warning"))
    return [text.partition(":")[0] for text in texts]


def test_job_whose_nodes_have_all_died_is_deployed_again_from_what_was_kept_with_another_token(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        job, (left, right) = running(world)
        keep(world, job)
        before = await left.next()
        assert before is not None
        for session in (left, right):
            world.dispatcher.heard(session, exited(job, 1, status=-9))
        assert world.state(job)[0] == "PENDING"
        await until(world, job, "DEPLOYING")
        assert states(world, job)[2:] == ["RUNNING", "PENDING", "PENDING", "DEPLOYING"]
        deploy = before
        while deploy.deploy.start != 1:
            message = await left.next()
            assert message is not None
            deploy = message
        assert deploy.deploy.resumes
        assert deploy.deploy.incarnation == 0
        assert deploy.deploy.token != before.deploy.token
        assert on(world) == {"a": job, "b": job}
        start(world, [left, right], job, 1)
        assert world.state(job)[0] == "RUNNING"
        assert world.change(job, 1)[:2] == ("alive", 0)

    play(tmp_path, scene)


@pytest.mark.parametrize("found", [False, True])
def test_master_that_takes_over_a_job_whose_nodes_have_died_goes_on_where_the_one_before_was(
    tmp_path: Path, found: bool
) -> None:
    async def scene(world: World) -> None:
        job, sessions = running(world)
        keep(world, job)
        await until_kept(LocalFolder(world.store.checkpoints / job), NUMBER)
        for session in sessions:
            world.dispatcher.heard(session, exited(job, 1, status=-9))
        run = world.dispatcher.run(job)
        assert run is not None
        if found:
            await until(world, job, "DEPLOYING")
        else:
            await asyncio.sleep(0)
        run.close()  # as its process is gone
        world.restart()
        left, _ = world.attach("a", "x"), world.attach("b", "y")
        await until(world, job, "DEPLOYING")
        await asyncio.sleep(0.2)
        assert [what for _, what in await told(left)] == ["deploy", "state", "state"]  # how, and one file

    play(tmp_path, scene)


def test_checkpoint_that_is_broken_is_warned_of_and_made_again(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        job, sessions = running(world)
        folder = LocalFolder(world.store.checkpoints / job)
        keep(world, job, NUMBER)
        await until_kept(folder, NUMBER)
        keep(world, job, 2 * NUMBER)
        await until_kept(folder, 2 * NUMBER)
        (tmp_path / "checkpoints" / job / f"{2 * NUMBER:09d}" / "node-1.safetensors").write_bytes(b"broken")
        for session in sessions:
            world.dispatcher.heard(session, exited(job, 1, status=-9))
        await until(world, job, "DEPLOYING")
        assert numbers(folder) == [NUMBER]
        assert warnings(world, job) == [f"checkpoint {2 * NUMBER} is left out"]
        start(world, sessions, job, 1)
        keep(world, job, 2 * NUMBER)
        await until_kept(folder, 2 * NUMBER)

    play(tmp_path, scene)


def test_job_that_waits_for_nodes_again_says_once_why_and_for_what(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        job, (left, right) = running(world)
        keep(world, job)
        world.dispatcher.detach(right, "its connection broke")
        die(world, [left], job, 0)
        while "needs 2 nodes" not in world.state(job)[1]:
            await asyncio.sleep(0.005)
        told = world.state(job)[1]
        assert told.startswith("all its nodes have died, the last of them node a: its job process ended by SIGKILL")
        assert told.endswith(f"; it goes on from checkpoint {NUMBER}; needs 2 nodes, 1 attached")
        before = states(world, job)
        world.attach("a", "x", connection=2)
        assert world.state(job) == ("PENDING", told)
        assert states(world, job) == before

    play(tmp_path, scene)


def test_checkpoint_that_breaks_once_it_was_chosen_is_left_out_and_the_one_before_is_taken(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        job, (left, right) = running(world)
        folder = LocalFolder(world.store.checkpoints / job)
        for number in (NUMBER, 2 * NUMBER):
            keep(world, job, number)
            await until_kept(folder, number)
        world.dispatcher.detach(right, "its connection broke")
        die(world, [left], job, 0)
        while "needs 2 nodes" not in world.state(job)[1]:
            await asyncio.sleep(0.005)
        (tmp_path / "checkpoints" / job / f"{2 * NUMBER:09d}" / "node-1.safetensors").write_bytes(b"broken")
        right = world.attach("b", "z")
        assert world.state(job)[0] == "DEPLOYING"
        failure = await is_refused(right)
        assert failure.startswith(f"checkpoint {2 * NUMBER} cannot be used: ")
        world.say(right, job, 1, failed=pb.Failed(text=failure, checkpoint=True))
        assert world.state(job) == ("PENDING", f"node b: {failure}")
        die(world, [left, right], job, 1)
        await until(world, job, "DEPLOYING")
        assert warnings(world, job) == [f"checkpoint {2 * NUMBER} is left out"]
        assert await goes_on_from(right, 2) == NUMBER
        start(world, [left, right], job, 2)
        assert world.state(job)[0] == "RUNNING"

    play(tmp_path, scene)


def read_hardly(failures: int) -> Callable[[LocalFolder, str, str], Iterator[bytes]]:
    """How a folder is read whose newest checkpoint cannot be, so many times."""
    left, read = [failures], LocalFolder.read

    def hardly(folder: LocalFolder, inner: str, file: str) -> Iterator[bytes]:
        if int(inner) == 2 * NUMBER and left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, "Input/output error")
        return read(folder, inner, file)

    return hardly


@pytest.mark.parametrize("failures", [3, 1000])
def test_checkpoint_that_cannot_be_read_is_waited_for_and_stays_and_the_job_does_not_go_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    monkeypatch.setattr(resuming, "_LOOK_S", 0.001)

    async def scene(world: World) -> None:
        job, sessions = running(world)
        folder = LocalFolder(world.store.checkpoints / job)
        for number in (NUMBER, 2 * NUMBER):
            keep(world, job, number)
            await until_kept(folder, number)
        monkeypatch.setattr(LocalFolder, "read", read_hardly(failures))
        die(world, sessions, job, 0)
        if failures == 3:
            await until(world, job, "DEPLOYING")
            assert await goes_on_from(sessions[0], 1) == 2 * NUMBER
            assert warnings(world, job) == []
        else:
            await until(world, job, "FAILED")
            assert "Input/output error" in world.state(job)[1]
            assert "once it can be read, ako resume goes on from it" in world.state(job)[1]
        assert numbers(folder) == [2 * NUMBER, NUMBER]

    play(tmp_path, scene)


def test_folder_that_cannot_be_listed_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "_LOOK_S", 0.001)
    left, folders = [5], LocalFolder.folders

    def hardly(folder: LocalFolder) -> list[str]:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ESTALE, "Stale file handle")
        return folders(folder)

    async def scene(world: World) -> None:
        job, sessions = running(world)
        keep(world, job)
        await until_kept(LocalFolder(world.store.checkpoints / job), NUMBER)
        monkeypatch.setattr(LocalFolder, "folders", hardly)
        die(world, sessions, job, 0)
        await until(world, job, "DEPLOYING")
        assert await goes_on_from(sessions[0], 1) == NUMBER
        assert not left[0]

    play(tmp_path, scene)


def test_job_that_fails_as_its_only_checkpoint_is_broken_leaves_what_is_there(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        job, sessions = running(world)
        folder = LocalFolder(world.store.checkpoints / job)
        keep(world, job)
        await until_kept(folder, NUMBER)
        place = tmp_path / "checkpoints" / job / f"{NUMBER:09d}"
        (place / "node-1.safetensors").write_bytes(b"broken")
        before = sorted(path.name for path in place.iterdir())
        die(world, sessions, job, 0)
        await until(world, job, "FAILED")
        assert sorted(path.name for path in place.iterdir()) == before

    play(tmp_path, scene)


def test_resuming_a_resumed_job_that_has_kept_nothing_names_the_job_before_it(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        first, second, sessions = await resumed(world)
        world.dispatcher.cancel(second)
        for session in sessions:
            world.dispatcher.heard(session, exited(second, 2))
        with pytest.raises(CheckpointError, match="no whole checkpoint") as refused:
            await going_on(world, second)
        assert f"from checkpoint {NUMBER} of another" in refused.value.fix
        assert refused.value.fix.endswith(f"ako resume {first}")

    play(tmp_path, scene)


def test_resumed_job_that_has_kept_nothing_itself_goes_on_from_where_it_did(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        _, job, sessions = await resumed(world)
        assert world.state(job)[0] == "RUNNING"
        for session in sessions:
            world.dispatcher.heard(session, exited(job, 2, status=-9))
        await until(world, job, "DEPLOYING")
        assert await goes_on_from(sessions[0], 1) == NUMBER
        start(world, sessions, job, 1)
        folder = LocalFolder(world.store.checkpoints / job)
        keep(world, job, 2 * NUMBER)
        await until_kept(folder, 2 * NUMBER)
        die(world, sessions, job, 1)
        await until(world, job, "DEPLOYING")
        assert await goes_on_from(sessions[0], 2) == 2 * NUMBER
        start(world, sessions, job, 2)
        (tmp_path / "checkpoints" / job / f"{2 * NUMBER:09d}" / "node-1.safetensors").write_bytes(b"broken")
        die(world, sessions, job, 2)
        await until(world, job, "DEPLOYING")
        assert await goes_on_from(sessions[0], 3) == NUMBER
        assert numbers(folder) == []
        reasons = [event.state.reason for event in world.store.events(job, 0) if event.state.state == "PENDING"]
        assert reasons[-1].endswith(f"it goes on from checkpoint {NUMBER} of the job that it was resumed from")

    play(tmp_path, scene)


def test_process_of_a_former_life_is_not_heard_and_its_node_not_free_before_it_is_gone(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        job, (left, right) = running(world)
        keep(world, job)
        world.dispatcher.detach(right, "its connection broke")
        world.dispatcher.heard(left, exited(job, 1, status=-9))
        assert world.state(job)[0] == "PENDING"
        back = world.attach("b", "y", [held(job, 1)], connection=2)
        while "needs 2 nodes" not in world.state(job)[1]:
            await asyncio.sleep(0.005)
        world.say(back, job, failed=pb.Failed(text="all others are gone"))
        assert world.state(job)[0] == "PENDING"
        world.dispatcher.heard(back, exited(job, 1, status=-9))
        assert world.state(job)[0] == "DEPLOYING"
        assert (await told(back))[0] == (job, "kill")

    play(tmp_path, scene)


def test_job_that_has_kept_nothing_fails(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        job, sessions = running(world)
        for session in sessions:
            world.dispatcher.heard(session, exited(job, 1, status=-9))
        await until(world, job, "FAILED")
        reason = world.state(job)[1]
        assert reason.startswith("all its nodes have died, the last of them node b: its job process ended by SIGKILL")
        assert "there is no whole checkpoint" in reason
        assert on(world) == {"a": "", "b": ""}

    play(tmp_path, scene)


def test_job_is_cancelled_while_its_checkpoint_is_looked_for(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        before = set(threading.enumerate())
        job, sessions = running(world)
        keep(world, job)
        for session in sessions:
            world.dispatcher.heard(session, exited(job, 1, status=-9))
        world.dispatcher.cancel(job)
        assert world.state(job)[0] == "CANCELLED"
        while any(thread.name == "checkpoints" for thread in set(threading.enumerate()) - before):
            await asyncio.sleep(0.005)
        assert world.dispatcher.run(job) is None
        assert states(world, job)[-1] == "CANCELLED"

    play(tmp_path, scene)
