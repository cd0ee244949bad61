"""Checkpoints under faults: writers that are killed, disks that are full, clusters that are gone.

    python benchmarks/faults_checkpoints.py kills --count 100
    python benchmarks/faults_checkpoints.py full            (as root: mounts a tmpfs of 8 MB)
    python benchmarks/faults_checkpoints.py resume --count 3

``kills`` ends a process with SIGKILL while it keeps checkpoints of two nodes, one after the other, at a moment drawn at
random, and then asks for the newest whole one: it must be the last that the process had said was whole, or the one
after. ``full`` trains with a checkpoint directory that is soon full. ``resume`` kills a whole cluster at a random
moment between two checkpoints and measures how long it takes until the job goes on by itself, from the start of a new
master, and what was lost: nodes tell their steps twice a second, so half a second of steps is added to what they had
told.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ako_jobs.jobs import load_job, prepare
from ako_jobs.run import execute
from dataflow import JobEvent, JobState, LocalCluster
from dataflow.engine.checkpoints import KeptFile, Manifest, encode
from dataflow.engine.events import Snapshot
from dataflow.runtime.checkpoint_store import CheckpointStore, load_manifest, newest_whole, numbers
from dataflow.runtime.folders import LocalFolder

NODES = 2
PIECE = 1 << 16
RESUMED_IMAGES, BATCH = 1 << 15, 8
TOLD_EVERY_S = 0.5
"""Seconds between what a node tells of itself."""


def manifest(number: int, files: tuple[KeptFile, ...]) -> Manifest:
    roles = {"worker": NODES}
    return Manifest(
        version="1", job="a", number=number, plan="", seed=0, wall_s=0, roles=roles, elements=(), files=files
    )


def write_for_ever(folder: LocalFolder, first: int, told: int) -> None:
    """Keep one checkpoint after the other, and write the number of each to `told` once it is whole."""
    store = CheckpointStore(folder, keep=3, manifest=manifest, nodes=frozenset(range(NODES)), warn=print)
    number = first
    while True:
        for node in range(NODES):
            values = {"replica/values": np.full(60_000, number, np.float32)}
            data = encode(Snapshot(node, f"node-{node}", ("worker",), number, number, {}, values))
            for start in range(0, len(data), PIECE):
                store.write(node, number, data[start : start + PIECE], last=start + PIECE >= len(data))
        load_manifest(folder, number)
        os.write(told, number.to_bytes(8, "little"))
        number += 1


def kills(count: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    restored = between = first = 0
    with tempfile.TemporaryDirectory() as path:
        folder = LocalFolder(Path(path) / "job")
        for _ in range(count):
            heard, told = os.pipe()
            child = os.fork()
            if not child:
                os.close(heard)
                write_for_ever(folder, first + 1, told)
            os.close(told)
            os.read(heard, 8)
            time.sleep(float(rng.uniform(0, 0.05)))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            last = first + 1
            while words := os.read(heard, 8):
                last = int.from_bytes(words, "little")
            os.close(heard)
            found, _ = newest_whole(folder)
            restored += found.number in (last, last + 1)
            between += any(each > found.number for each in numbers(folder))
            first = max(numbers(folder))
    return {"killed": count, "restored": restored, "killed_inside_a_checkpoint": between}


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A tmpfs of that size."""
    with tempfile.TemporaryDirectory() as path:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", path], check=True)
        try:
            yield Path(path)
        finally:
            subprocess.run(["umount", "-l", path], check=True)


def full() -> dict[str, Any]:
    with small_disk(8) as path:
        (path / "other").write_bytes(bytes(6 << 20))
        settings = {"checkpoint_every": 256, "checkpoint_dir": str(path), "keep_checkpoints": 100, "epochs": 4}
        result = execute(prepare(load_job("ako"), settings, 2))
        folder = LocalFolder(path / result.job)
        warnings: Any = result.record["warnings"]
        return {
            "state": result.state,
            "warnings": [text for text in warnings if "checkpoint" in text],
            "newest": newest_whole(folder)[0].number,
            "kept": len(numbers(folder)),
            "gradients": result.record["totals"],
        }


def resume(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Kill everything at a moment drawn at random, and go on; of the steps made until then an upper bound is known."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        with tempfile.TemporaryDirectory() as path:
            state_dir = Path(path) / "state"
            settings = {"checkpoint_every": RESUMED_IMAGES, "batch": BATCH, "epochs": 100_000, "warm_start": 0}
            prepared = prepare(load_job("ako"), settings, NODES)
            with LocalCluster(nodes=NODES, tasks=1, state_dir=state_dir) as cluster:
                name = cluster.client.submit(prepared.spec, prepared.bundle)
                folder, whole_s = LocalFolder(state_dir / "checkpoints" / name), list[float]()
                while len(whole_s) < 2:
                    time.sleep(0.02)
                    whole_s += [time.monotonic()] * (len(numbers(folder)) > len(whole_s))
                time.sleep(float(rng.uniform(0, whole_s[1] - whole_s[0])))
                told = cluster.client.job(name).statistics
                for pid in cluster.processes().values():
                    os.kill(pid, signal.SIGKILL)
            made = max(each.steps * (1 + TOLD_EVERY_S / each.running_s) for each in told)
            begin = time.monotonic()
            with LocalCluster(nodes=NODES, tasks=1, state_dir=state_dir) as cluster:
                up_s = time.monotonic() - begin
                told_of = (event for event in cluster.client.watch(name) if event.state)
                reasons = [event.reason for event in until_running_again(told_of)]
                running_s = time.monotonic() - begin
                cluster.client.cancel(name)
                cluster.client.wait(name)
            number = next(int(named[1]) for each in reasons if (named := re.search(r"from checkpoint (\d+)", each)))
            between = RESUMED_IMAGES // (NODES * BATCH)
            found.append(
                {
                    "cluster_up_s": round(up_s, 2),
                    "running_s": round(running_s, 2),
                    "steps_made_at_most": round(made),
                    "checkpoint": number,
                    "steps_between_checkpoints": between,
                    "intervals_lost_at_most": round((made - number) / between, 2),
                }
            )
    return found


def until_running_again(events: Iterable[JobEvent]) -> Iterator[JobEvent]:
    """Changes of a job's state up to the one with which it runs for the second time."""
    runs = 0
    for event in events:
        yield event
        runs += event.state == JobState.RUNNING
        if runs == 2:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kills", "full", "resume"))
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    match options.what:
        case "kills":
            found: Any = kills(options.count, options.seed)
        case "full":
            found = full()
        case _:
            found = resume(options.count, options.seed)
    json.dump(found, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
