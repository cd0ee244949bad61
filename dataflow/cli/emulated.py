"""The option that runs jobs in the lab, for every verb that runs jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from dataflow.errors import LabError
from dataflow.lab.cluster import lab_cluster
from dataflow.lab.lab import find
from dataflow.lab.plan import LabPlan
from dataflow.lab.state import in_use
from dataflow.runtime.cluster_processes import Nursery
from dataflow.runtime.local_cluster import LocalCluster
from dataflow.runtime.state_dir import default_state_dir

if TYPE_CHECKING:
    from ako_jobs.run import MakeCluster

LabFlag = Annotated[
    bool, typer.Option("--lab", help="Run in the lab that `ako lab up` has made: node i on its host i.")
]


def lab_plan(lab: bool) -> LabPlan | None:
    """The lab that is up, if it was asked for."""
    return find(default_state_dir()) if lab else None


@contextmanager
def held(plan: LabPlan | None) -> Iterator[None]:
    """Have nobody replace a lab inside the ``with`` block, if there is one.

    Raises:
        LabError: somebody has since it was found, or does so now.
    """
    if plan is None:
        yield
        return
    with in_use(default_state_dir(), alone=False):
        if find(default_state_dir()) != plan:
            raise LabError(what="another lab has been made in the place of this one", fix="try again")
        yield


def cluster_maker(plan: LabPlan | None, nursery: Nursery) -> MakeCluster:
    """What makes the processes of a job: in the lab if there is one, else beside this one, from a nursery."""
    if plan is None:
        return partial(LocalCluster, nursery=nursery)
    return partial(lab_cluster, plan, default_state_dir())
