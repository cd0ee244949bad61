"""The cores of a node, shared by its compute tasks and borrowed by its network tasks."""

from dataflow.sim.cores import Cores


def test_task_alone_on_its_core_loses_nothing() -> None:
    cores = Cores(1)
    mark = cores.begin(0.0)
    assert cores.owed(mark) == (0.0, 0.0)


def test_compute_task_on_one_core_loses_all_that_a_network_task_takes() -> None:
    cores = Cores(1)
    mark = cores.begin(0.0)
    cores.take(1.0, 0.25)
    owed_s, mark = cores.owed(mark)
    assert owed_s == 0.25
    assert cores.owed(mark)[0] == 0.0


def test_free_core_serves_the_network_task_and_nobody_loses() -> None:
    cores = Cores(2)
    mark = cores.begin(0.0)
    cores.take(1.0, 0.25)
    assert cores.owed(mark)[0] == 0.0


def test_busy_cores_share_what_a_network_task_takes() -> None:
    cores = Cores(2)
    marks = [cores.begin(0.0), cores.begin(0.0)]
    cores.take(1.0, 0.25)
    assert [cores.owed(mark)[0] for mark in marks] == [0.125, 0.125]


def test_compute_task_that_begins_beside_a_network_task_loses_what_is_left_of_it() -> None:
    cores = Cores(1)
    cores.take(1.0, 0.25)
    mark = cores.begin(1.125)
    assert cores.owed(mark)[0] == 0.125


def test_compute_task_that_begins_after_another_ended_owes_nothing_of_the_others() -> None:
    cores = Cores(1)
    cores.begin(0.0)
    cores.take(0.5, 0.25)
    cores.end()
    mark = cores.begin(2.0)
    assert cores.owed(mark)[0] == 0.0
