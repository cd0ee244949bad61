"""Simulated jobs: how long they take, what they send, how they end, and that they end."""

from __future__ import annotations

import json
import signal
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

import pytest

from ako_jobs.config import TrainingConfig
from ako_jobs.integers import violations
from ako_jobs.jobs import Job, load_job, prepare
from ako_jobs.simulate import Simulation, execute_simulation, prepare_simulation, simulate
from dataflow.compiled import form
from dataflow.engine.events import MessageArrived
from dataflow.engine.job_life import JobState
from dataflow.errors import ConfigError
from dataflow.graph.logical import LogicalGraph
from dataflow.message import HEADER_NBYTES, Tick
from dataflow.observe.events import JobEvent
from dataflow.operators_api import Emissions, Operator
from dataflow.plan.job import JobSpec
from dataflow.plan.physical import StreamId
from dataflow.ports import In, Out
from dataflow.reports import NodeStatistics
from dataflow.sim.costs import TaskKind
from dataflow.sim.faults import LinkFails, parse_fault
from dataflow.sim.model import ClusterModel
from dataflow.sim.network import SimNetwork
from dataflow.sim.run import SimRun
from dataflow.sim.simulator import Simulator
from operators.cost_model import CostModel

STEP_S = 0.01
MEANS = {TaskKind("compute", role, first): STEP_S for role in ("step", "shard") for first in (True, False)}
PHANTOM = {"phantom": True, "holdout": 0, "epochs": 2, "batch": 8}
"""1,442 images: 181 mini-batches an epoch."""

LARGE = {**PHANTOM, "model": "resnet20", "validate_every": 10**9}
"""Of 1.1 MB."""


def simulator(job: str, nodes: int, settings: dict[str, Any], *faults: str, **how: Any) -> Simulator:
    """A simulator whose gradients take `STEP_S`, and nothing else any time; `how` may hold `on_event` and a model."""
    spec = prepare(load_job(job), settings, nodes).spec
    on_event = how.pop("on_event", lambda event: None)
    model = ClusterModel(faults=tuple(map(parse_fault, faults)), **{"compute": "constant", **how})
    return Simulator(spec, model, MEANS, on_event)


def run(job: str, nodes: int, settings: dict[str, Any], *faults: str, **how: Any) -> SimRun:
    return simulator(job, nodes, settings, *faults, **how).run()


def model_nbytes(graph: LogicalGraph) -> int:
    """The size that the phantom stands for."""
    cells = graph.operator("apply").params
    return 4 * graph.tensor_scale * int(cells.rpartition("]")[0].rpartition(",")[2])


def gradients(finished: SimRun) -> int:
    return sum(each.steps for each in finished.statistics)


class Ticks(Operator):
    source = True
    ticks = Out(Tick)

    def process(self, tick: Tick) -> Emissions:
        yield self.ticks(tick)


@pytest.mark.parametrize("said", [{"compute": "constant"}, {"compute": "gamma"}, {"compute": "gamma", "step_s": 1.0}])
def test_simulation_of_a_job_without_gradients_in_which_they_alone_take_time_is_refused(said: dict[str, Any]) -> None:
    graph = LogicalGraph(name="ticks").with_role("worker").with_operator("source", Ticks(), role="worker")
    job = Job("ticks", TrainingConfig, lambda config: graph)
    with pytest.raises(ConfigError, match="nothing would take time: ticks makes no gradients") as raised:
        prepare_simulation(job, {}, 2, ClusterModel(**said))
    assert "use compute=measured" in str(raised.value)


# How long jobs take


def test_one_worker_takes_its_gradients_times_their_time() -> None:
    finished = run("ako", 1, PHANTOM)
    assert gradients(finished) == 362
    # The node tells the coordinator that it has ended.
    assert finished.elapsed_s == pytest.approx(362 * STEP_S + 100e-6)


def test_network_tasks_of_a_node_delay_its_gradients_by_what_they_take() -> None:
    reading_s = 1e-3
    means = MEANS | {TaskKind("source", "message", first): reading_s for first in (True, False)}
    spec = prepare(load_job("ako"), PHANTOM, 1).spec
    finished = Simulator(spec, ClusterModel(compute="constant", step_s=STEP_S), means).run()
    # What is read first is waited for; each of the others is read while a gradient is computed on the node's one core.
    assert finished.elapsed_s == pytest.approx(reading_s + 362 * STEP_S + 361 * reading_s + 100e-6, rel=1e-2)
    assert finished.statistics[0].busy_s["compute"] == pytest.approx(362 * STEP_S)


def test_phantom_tells_its_epochs_and_no_accuracy() -> None:
    result = simulate("ako", {**PHANTOM, "epochs": 2}, nodes=2, model=ClusterModel(compute="constant", step_s=STEP_S))
    reached = [(report["port"], report["images"], report["epoch"]) for report in result.reports]
    assert reached == [("advance.reached", 1442 * epoch, epoch) for epoch in (1, 2, 2)]
    assert all("accuracy" not in report for report in result.reports)


def test_series_holds_the_gap_of_replicas_as_the_node_that_compares_them_has_measured_it() -> None:
    """After each of two epochs, and once all updates are applied."""
    model = ClusterModel(compute="constant", step_s=STEP_S)
    result = simulate("ako", {"epochs": 2, "p": 2, "warm_start": 0}, nodes=2, model=model)
    last, measured = result.record["series"][-1], result.record["nodes"][0]["samples"]["divergence.rms"]
    assert (last["gaps"], measured["count"]) == (3, 3)
    assert last["gap"] == pytest.approx(3 * measured["mean"])
    assert last["gap"] > 0


def test_engine_of_a_node_delays_it_by_its_time_for_each_task_and_is_no_part_of_tasks() -> None:
    plain, finished = run("ako", 1, PHANTOM), run("ako", 1, PHANTOM, engine_s=1e-4)
    tasks = finished.statistics[0].tasks
    assert tasks == plain.statistics[0].tasks
    assert finished.elapsed_s == pytest.approx(362 * STEP_S + tasks * 1e-4, rel=1e-3)
    assert finished.statistics[0].busy_s == pytest.approx(plain.statistics[0].busy_s)


def test_engines_time_is_no_part_of_tasks_on_a_node_that_slows_either() -> None:
    means = MEANS | {TaskKind("source", "message", first): 1e-3 for first in (True, False)}
    spec = prepare(load_job("ako"), PHANTOM, 1).spec
    model = ClusterModel(compute="constant", engine_s=2e-3, faults=(parse_fault("slow:0@0+1000x0.5"),))
    (statistics,) = Simulator(spec, model, means).run().statistics
    # At twice the pace; a gradient is held up by what is read meanwhile.
    assert statistics.busy_s["network"] == pytest.approx(0.5 * 363e-3)  # with the read that finds the end
    assert 0.5 * 362 * STEP_S <= statistics.busy_s["compute"] <= 0.5 * 362 * STEP_S * 2


def test_messages_take_their_time_from_the_core_of_either_end() -> None:
    """Of two nodes that do the same at the same time, each sends half of all messages and receives the other half."""
    plain, finished = (run("all_to_all", 2, LARGE, message_s=seconds, rate=1e15) for seconds in (0.0, 6e-4))
    assert finished.messages == plain.messages
    assert finished.elapsed_s - plain.elapsed_s == pytest.approx(6e-4 * finished.messages, rel=0.02)
    assert finished.statistics[0].busy_s == pytest.approx(plain.statistics[0].busy_s)


def test_messages_take_time_for_each_of_their_bytes() -> None:
    plain, finished = (run("all_to_all", 2, LARGE, byte_s=seconds, rate=1e15) for seconds in (0.0, 1e-9))
    sent_nbytes = sum(sum(each.sent_nbytes.values()) for each in finished.statistics)
    assert finished.elapsed_s - plain.elapsed_s == pytest.approx(1e-9 * sent_nbytes, rel=0.02)


def test_message_is_delivered_once_both_ends_have_dealt_with_it_even_where_they_only_wait() -> None:
    """In rounds, a worker waits for the server while its gradient goes there, and the model comes back.

    A message's way is packed, link, unpacked; both ends are at it one after the other.
    """
    settings = {**PHANTOM, "servers": 1, "consistency": "bsp"}
    plain, finished = (run("parameter_server", 2, settings, message_s=seconds) for seconds in (0.0, 1e-3))
    assert finished.messages == plain.messages
    assert finished.elapsed_s - plain.elapsed_s == pytest.approx(2e-3 * finished.messages, rel=0.02)


@pytest.mark.parametrize(
    ("fault", "longer_s"),
    [
        ("pause:0@1+1.5", 1.5),
        ("pause:0@1.005+0.2", 0.2),
        ("slow:0@1+1x4", 0.75),
        ("slow:0@1+1x0.5", -1.0),
        ("cut:0-1@1+0.3", 0.0),
        ("pause:0@100+1", 0.0),
    ],
)
def test_fault_of_one_worker_lengthens_its_run_as_computed(fault: str, longer_s: float) -> None:
    """Of the work of a second, one that is 4 times as slow leaves three quarters to be done after it."""
    job, nodes = ("ako", 1) if "-" not in fault else ("all_to_all", 2)
    settings = {**PHANTOM, "consistency": "async"} if nodes == 2 else PHANTOM
    without, with_fault = run(job, nodes, settings), run(job, nodes, settings, fault)
    assert with_fault.elapsed_s - without.elapsed_s == pytest.approx(longer_s, abs=1e-9)
    assert gradients(with_fault) == gradients(without)


@pytest.mark.parametrize("fault", ["slow:0@0+1000x4", "pause:0@1.005+2"])
def test_fault_of_a_worker_that_always_computes_counts_as_computing(fault: str) -> None:
    """As on a real node, whose clock goes on while a task is held up, and as of one that is slow from the start."""
    finished = run("ako", 1, PHANTOM, fault)
    assert finished.statistics[0].busy_s["compute"] == pytest.approx(finished.elapsed_s - 100e-6)


def test_bulk_synchronous_workers_all_wait_for_the_one_that_pauses_or_slows() -> None:
    """A step in which one is slow takes 3 gradient times more, and an exchange as ever."""
    settings = {**PHANTOM, "consistency": "bsp"}
    plain = run("all_to_all", 4, settings)
    paused = run("all_to_all", 4, settings, "pause:2@0.1+1.5")
    slowed = run("all_to_all", 4, settings, "slow:2@0.1+0.2x4")
    exchange_s = 3 * model_nbytes(plain.plan.graph) / 125e6 + 100e-6
    slow_steps = 0.2 / (4 * STEP_S + exchange_s)
    assert paused.elapsed_s - plain.elapsed_s == pytest.approx(1.5, abs=exchange_s)
    assert slowed.elapsed_s - plain.elapsed_s == pytest.approx(slow_steps * 3 * STEP_S, abs=3 * STEP_S)


@pytest.mark.parametrize(("nodes", "rate"), [(2, 125e6), (4, 125e6), (8, 125e6), (8, 12.5e6)])
def test_bulk_synchronous_all_to_all_takes_a_gradient_and_an_exchange_per_step(nodes: int, rate: float) -> None:
    """Each step: the gradient, then m (n - 1) / B and the latency. In the end node 0 is sent a weight of every replica,
    which stands for a thousand, as samples hold.
    """
    finished = run("all_to_all", nodes, {**LARGE, "consistency": "bsp"}, rate=rate)
    m = model_nbytes(finished.plan.graph) + HEADER_NBYTES
    sample = 4 * finished.plan.graph.tensor_scale + HEADER_NBYTES
    steps = gradients(finished) // nodes
    exchange_s, samples_s = ((nodes - 1) * nbytes / rate + 100e-6 for nbytes in (m, sample))
    assert finished.elapsed_s == pytest.approx(steps * (STEP_S + exchange_s) + samples_s, rel=1e-4)


@pytest.mark.parametrize(("speed", "tasks"), [(0.5, 1), (2.0, 1)])
def test_straggler_takes_its_factor_longer(speed: float, tasks: int) -> None:
    finished = run("ako", 1, PHANTOM, speeds={0: speed}, tasks=tasks)
    assert finished.elapsed_s == pytest.approx(gradients(finished) * STEP_S / speed, rel=1e-3)


@pytest.mark.parametrize(("cpu", "tasks"), [(0.25, 1), (0.4, 1), (0.8, 2), (0.999, 1)])
def test_node_with_a_share_of_the_processor_takes_as_much_longer_but_for_a_slice(cpu: float, tasks: int) -> None:
    finished = run("ako", 1, PHANTOM, cpu=cpu, tasks=tasks)
    assert finished.elapsed_s == pytest.approx(gradients(finished) * tasks * STEP_S / cpu, rel=1e-3, abs=2 * 0.02)


def test_messages_that_come_while_a_node_stands_still_are_taken_in_once_it_goes_on() -> None:
    """So that nobody is ahead of what a share allows: nodes that wait for each other are as slow as the slowest."""
    settings = {**PHANTOM, "consistency": "bsp"}
    plain, shared = run("all_to_all", 4, settings), run("all_to_all", 4, settings, cpu=0.5)
    assert 1.5 * plain.elapsed_s < shared.elapsed_s < 6 * plain.elapsed_s
    assert gradients(shared) == gradients(plain)


@pytest.mark.parametrize(("nodes", "cores", "times"), [(4, 2, 2.0), (3, 2, 1.5), (2, 2, 1.0), (2, 4, 1.0)])
def test_nodes_of_one_machine_take_as_much_longer_as_it_has_too_few_cores(nodes: int, cores: int, times: float) -> None:
    settings = {**PHANTOM, "p": 1}
    apart, together = run("ako", nodes, settings), run("ako", nodes, settings, cores=cores)
    assert together.elapsed_s == pytest.approx(times * apart.elapsed_s, rel=0.02)
    assert gradients(together) == gradients(apart)


def test_nodes_of_one_machine_of_which_one_dies_have_its_part_until_it_is_back() -> None:
    """While one is away the other makes a gradient in each `STEP_S`; else each makes one in two of these."""
    finished = run("ako", 2, {**PHANTOM, "epochs": 4}, "fail:1@1+3", cores=1)
    assert finished.state is JobState.FINISHED
    assert [node.incarnation for node in finished.statistics] == [0, 1]
    assert gradients(finished) * STEP_S == pytest.approx(finished.elapsed_s - 0.5, abs=0.6)


# What they send


@pytest.mark.parametrize(("nodes", "p"), [(4, 3), (4, 6), (8, 8)])
def test_ako_sends_m_n_minus_1_over_p_per_gradient(nodes: int, p: int) -> None:
    """And in the end what is left, as in p - 1 rounds more; divergence and headers are not counted."""
    finished = run("ako", nodes, {**LARGE, "p": p, "every": 1})
    m, made = model_nbytes(finished.plan.graph), gradients(finished)
    sent = sum(sum(each.sent_nbytes.values()) for each in finished.statistics)
    exchanged = sent - finished.messages * HEADER_NBYTES - (nodes - 1) * 4 * finished.plan.graph.tensor_scale
    assert exchanged == pytest.approx((made + nodes * (p - 1)) * m * (nodes - 1) / p, rel=1e-4)


def test_ako_sends_m_n_minus_1_over_p_per_gradient_in_a_long_run_all_told() -> None:
    finished = run("ako", 4, {**LARGE, "epochs": 10, "p": 3, "every": 1})
    per_gradient = sum(sum(each.sent_nbytes.values()) for each in finished.statistics) / gradients(finished)
    assert per_gradient == pytest.approx(model_nbytes(finished.plan.graph) * 3 / 3, rel=0.01)


def test_job_that_is_told_of_a_slow_link_begins_with_a_round_that_its_bound_on_staleness_lets_begin() -> None:
    """The link asks for rounds of hundreds of gradients; no worker is more than a few ahead of the other at first."""
    settings = {**DIGITS, "codec": "threshold:density=0.03", "tau": 4, "bandwidth": "20kbit", "epochs": 1}
    assert run("ako", 2, settings).state == "FINISHED"


def test_phantom_is_exchanged_in_as_many_partitions_as_what_it_stands_for() -> None:
    """ako.txt, equation 3: 200 gradients/s x m x 9 / (1.25 MB/s) / 2, m = 54,824 bytes, and 54,908 of the phantom."""
    real, phantom = ({**DIGITS, "bandwidth": "10mbit", "phantom": each} for each in (0, 1))
    costs = [
        CostModel(**json.loads(element.params)["cost"])
        for settings in (real, phantom)
        for element in prepare(load_job("ako"), settings, 10).graph.elements
        if element.name == "rotation"
    ]
    assert [cost.load(200, 9) / 2 for cost in costs] == pytest.approx([39.474, 39.534], abs=1e-3)
    assert [cost.first(9) for cost in costs] == [(40, 2), (40, 2)]


def test_phantom_sends_what_the_network_that_it_stands_for_sends() -> None:
    """Its model is 0.15% heavier: 13,727 weights, not 13,706. Samples of the replicas are 4 KiB, 2.4% of it all."""
    real, phantom = (run("ako", 4, {**DIGITS, "epochs": 1, "p": 50, "phantom": phantom}) for phantom in (False, True))
    sent = [sum(sum(each.sent_nbytes.values()) for each in finished.statistics) for finished in (real, phantom)]
    assert gradients(real) == gradients(phantom)
    assert sent[1] == pytest.approx(sent[0], rel=0.005)


def test_all_to_all_sends_m_n_minus_1_per_gradient() -> None:
    finished = run("all_to_all", 4, {**LARGE, "epochs": 4, "consistency": "async"})
    per_gradient = sum(sum(each.sent_nbytes.values()) for each in finished.statistics) / gradients(finished)
    assert per_gradient == pytest.approx(model_nbytes(finished.plan.graph) * 3, rel=0.01)


def test_paused_receiver_costs_each_sender_a_window_and_a_message_at_most() -> None:
    """Nobody waits for anybody's gradients, but all for room to send: the pause stops the whole job."""
    newest: dict[int, NodeStatistics] = {}
    under_way: dict[tuple[int, int], list[int]] = defaultdict(list)

    def look(event: JobEvent) -> None:
        if event.statistics is not None:
            newest[event.statistics.node] = event.statistics
            if event.statistics.node == 3:
                for source, target in ((0, 2), (1, 2), (3, 2), (0, 1)):
                    sent = newest[source].sent_nbytes.get(target, 0)
                    under_way[source, target].append(sent - newest[target].received_nbytes.get(source, 0))

    settings = {**PHANTOM, "epochs": 4, "consistency": "async"}
    finished = run("all_to_all", 4, settings, "pause:2@0.1+60", on_event=look, statistics_s=0.5)
    assert finished.state == "FINISHED"
    assert finished.elapsed_s > 60
    largest = model_nbytes(finished.plan.graph) + HEADER_NBYTES
    for source in (0, 1, 3):
        assert finished.plan.window_nbytes <= max(under_way[source, 2]) <= finished.plan.window_nbytes + largest
    assert max(under_way[0, 1]) <= 2 * largest
    assert sum(map(len, under_way.values())) < 200


# How they end


DIGITS = {"epochs": 4, "warm_start": 0.05, "seed": 1}


def failing(fault: str, **settings: Any) -> Simulation:
    """Ako on four nodes, of which one fails at second 1.25, as is known half a second later."""
    model = ClusterModel(compute="constant", step_s=STEP_S, faults=(parse_fault(fault),), detection_s=0.5)
    return simulate("ako", {**DIGITS, **settings}, nodes=4, model=model)


def changes(finished: Simulation) -> list[tuple[float, int, str, int]]:
    """When what became of which node, and its incarnation."""
    found: Any = finished.record["changes"]
    return [(each["time_s"], each["node"], each["life"], each["incarnation"]) for each in found]


def test_declared_node_failure_leaves_the_others_training_to_the_end() -> None:
    finished = failing("fail:2@1.25")
    assert (finished.state, finished.record["stopped_by"]) == (JobState.FINISHED, "epochs")
    assert changes(finished) == [(1.75, 2, "away", 0)]
    nodes: Any = finished.record["nodes"]
    assert 100 <= nodes[2]["steps"] <= 126 < nodes[0]["steps"]


def test_declared_node_failure_fails_a_job_that_needs_all_its_nodes_once_it_has_waited_and_keeps_reports() -> None:
    failed = failing("fail:2@1.25", min_nodes=4, epochs=40)
    assert failed.state is JobState.FAILED
    assert failed.reason == "node node-2: it was lost: it failed at second 1.25, as declared"
    assert failed.record["run_s"] == 11.75
    assert len(failed.reports) >= 1
    assert all(report["time_s"] < 11.75 for report in failed.reports)


def test_node_that_comes_back_joins_as_another_incarnation_and_all_end() -> None:
    finished = failing("fail:2@1.25+0.75", epochs=5)
    assert finished.state is JobState.FINISHED
    lives = changes(finished)
    assert [life for _, *life in lives] == [[2, "away", 0], [2, "joining", 1], [2, "alive", 1]]
    assert [at_s for at_s, *_ in lives] == pytest.approx([1.75, 2.0, 2.0])
    nodes: Any = finished.record["nodes"]
    assert [each["incarnation"] for each in nodes] == [0, 0, 1, 0]
    assert nodes[2]["steps"] > 0


def test_node_that_is_back_as_its_death_becomes_known_gets_nothing_that_was_meant_for_its_predecessor() -> None:
    faults = (parse_fault("fail:2@0.1+0.1"),)
    model = ClusterModel(compute="gamma", step_s=0.005, latency_s=0.02, faults=faults)
    settings = {"gradients": "100000", "tau": "100000", "pace_ms": "0", "time": "1.2"}
    finished = simulate("ako_jobs.integers:build", settings, nodes=4, model=model)
    assert [life[1:] for life in changes(finished)][-1] == (2, "alive", 1)
    assert violations(cast("Any", finished.record["reports"])) == []


def buried(faults: Sequence[str], time: float) -> list[float]:
    """When nodes were buried, with links that are cut."""
    model = ClusterModel(compute="constant", step_s=STEP_S, faults=tuple(map(parse_fault, faults)))
    finished = simulate("ako", {**DIGITS, "epochs": 100, "time": time}, nodes=4, model=model)
    return [at_s for at_s, _, life, _ in changes(finished) if life == "dying"]


def test_link_that_was_mended_and_is_cut_again_has_its_whole_patience_again() -> None:
    assert buried(["cut:0-1@0.5+1", "cut:0-1@2.4+0.2"], time=5) == []
    assert buried(["cut:0-1@0.5+2.5", "cut:0-1@1.0+1"], time=5) == [pytest.approx(2.75, abs=0.01)]


def test_node_that_has_come_back_behind_a_cut_link_is_not_buried_for_what_was_cut_before() -> None:
    (at_s,) = buried(["cut:0-1@0.5", "fail:1@0.6+1.5"], time=5)[:1]
    assert at_s == pytest.approx(4.35, abs=0.01)


def test_simulated_failures_of_one_seed_are_equal_bit_for_bit() -> None:
    one, other = failing("fail:2@1.25+0.75"), failing("fail:2@1.25+0.75")
    assert one.reports == other.reports
    assert one.record["nodes"] == other.record["nodes"]


def test_target_stops_the_job_and_one_never_reached_ends_by_epochs_with_the_record_complete() -> None:
    model = ClusterModel(compute="constant", step_s=STEP_S)
    reached = simulate("ako", {**DIGITS, "target": 0.5}, nodes=2, model=model)
    missed = simulate("ako", {**DIGITS, "target": 1.0}, nodes=2, model=model)
    assert (reached.state, reached.stopped_by) == (JobState.FINISHED, "target")
    assert (missed.state, missed.stopped_by) == (JobState.FINISHED, "epochs")
    assert any(report["accuracy"] >= 0.5 for report in reached.reports)
    assert reached.record["run_s"] < missed.record["run_s"]  # type: ignore[operator]
    assert [report["epoch"] for report in missed.reports] == pytest.approx([1, 2, 3, 4, 4], abs=0.02)
    assert {"model.safetensors"} <= missed.artifacts.keys()
    assert missed.record["simulation"]["step_s"] == STEP_S  # type: ignore[index, call-overload]
    assert missed.record["series"]


def test_time_rule_stops_the_job_in_virtual_time() -> None:
    finished = run("ako", 2, {**PHANTOM, "epochs": 100, "time": 1.5})
    assert (finished.state, finished.stopped_by) == ("FINISHED", "time")
    assert finished.elapsed_s == pytest.approx(1.5, abs=5 * STEP_S)


def test_cancel_from_another_thread_ends_cancelled_with_partial_results() -> None:
    events: list[JobEvent] = []

    def cancel_at_first_report(event: JobEvent) -> None:
        events.append(event)
        if event.report is not None and len(seen) == 0:
            seen.append(event.elapsed_s)
            other = threading.Thread(target=made.cancel)
            other.start()
            other.join()

    seen: list[float] = []
    made = simulator("ako", 2, DIGITS, on_event=cancel_at_first_report)
    finished = made.run()
    assert (finished.state, finished.stopped_by) == ("CANCELLED", "cancel")
    assert finished.elapsed_s < seen[0] + 10 * STEP_S
    assert "model.safetensors" in finished.artifacts
    assert gradients(finished) > 50


def test_cancel_before_the_run_ends_it_before_anything_is_computed() -> None:
    made = simulator("ako", 2, DIGITS)
    made.cancel()
    finished = made.run()
    assert (finished.state, finished.elapsed_s, gradients(finished)) == ("CANCELLED", 0.0, 0)


def test_interrupt_by_signal_keeps_what_the_job_has_made() -> None:
    def interrupt(event: JobEvent) -> None:
        if event.report is not None:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    prepared = prepare(load_job("ako"), {**DIGITS, "validate_every": 800}, 2)
    result = execute_simulation(Simulation(prepared, ClusterModel(compute="constant"), MEANS), on_event=Once(interrupt))
    assert (result.state, result.interrupted) == (JobState.CANCELLED, True)
    assert result.reports
    assert "model.safetensors" in result.artifacts
    assert signal.getsignal(signal.SIGINT) is before


class Once:
    """Lets events through to a function until one is a report."""

    def __init__(self, function: Any) -> None:
        self._function, self._over = function, False

    def __call__(self, event: JobEvent) -> None:
        if not self._over:
            self._over = event.report is not None
            self._function(event)


@pytest.mark.skipif(form().compiled, reason="what compiled classes do cannot be replaced; CI runs it interpreted")
def test_send_queue_of_a_stream_is_finite_as_its_credit_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of 1.1 MB leave while any of 4 MiB of credit is left: four wait for a slow link, and never a fifth."""
    waiting: defaultdict[StreamId, int] = defaultdict(int)
    most: defaultdict[StreamId, int] = defaultdict(int)
    send, arrived = SimNetwork.send, Simulator._arrived

    def noting_send(network: SimNetwork, source: int, target: int, item: Any, nbytes: int) -> None:
        if isinstance(item, MessageArrived):
            waiting[item.stream] += nbytes
            most[item.stream] = max(most[item.stream], waiting[item.stream])
        send(network, source, target, item, nbytes)

    def noting_arrived(driver: Simulator, source: int, target: int, event: Any) -> None:
        if isinstance(event, MessageArrived):
            waiting[event.stream] -= event.nbytes
        arrived(driver, source, target, event)

    monkeypatch.setattr(SimNetwork, "send", noting_send)
    monkeypatch.setattr(Simulator, "_arrived", noting_arrived)
    finished = run("all_to_all", 3, {**LARGE, "consistency": "async", "epochs": 0.2}, rate=1e6)
    message = model_nbytes(finished.plan.graph) + HEADER_NBYTES
    assert finished.plan.window_nbytes == 4 << 20
    assert max(most.values()) == 4 * message


# And that they end


class Never(Operator):
    ticks = In(Tick)

    def ready(self) -> bool:
        return False

    def process(self, tick: Tick) -> None:
        del tick


def test_nodes_that_wait_for_ever_are_reported() -> None:
    graph = LogicalGraph(name="never").with_role("worker").with_operator("source", Ticks(), role="worker")
    graph = graph.with_operator("never", Never(), role="worker").connect("source", "never")
    finished = Simulator(JobSpec(name="never", graph=graph, nodes=2), ClusterModel(), {}).run()
    assert finished.state == "FAILED"
    assert "nodes wait for each other for ever: node-0, node-1" in finished.reason


@pytest.mark.parametrize("job", ["ako", "all_to_all"])
def test_cut_of_more_than_two_seconds_costs_the_node_of_higher_number_the_job(job: str) -> None:
    told: list[JobEvent] = []
    settings = {**PHANTOM, "consistency": "async"} if job == "all_to_all" else PHANTOM
    finished = run(job, 3, {**settings, "epochs": 6}, "cut:0-1@0.5", on_event=told.append)
    assert finished.state == "FINISHED"
    lives = [(event.elapsed_s, event.change.node, event.change.life) for event in told if event.change is not None]
    assert lives[0] == (pytest.approx(2.75), 1, "dying")
    assert {node for _, node, _ in lives} == {1}


def test_cut_of_less_than_two_seconds_costs_nobody_anything() -> None:
    told: list[JobEvent] = []
    finished = run("ako", 3, {**PHANTOM, "epochs": 6}, "cut:0-1@0.5+1.9", on_event=told.append)
    assert finished.state == "FINISHED"
    assert not any(event.change for event in told)


def test_pause_that_outlasts_the_job_by_years_is_waited_for_in_no_time() -> None:
    """Nothing happens meanwhile, and nobody tells statistics of it."""
    told: list[float] = []
    finished = run("ako", 3, PHANTOM, "pause:1@0.5+1000000000", on_event=lambda event: told.append(event.elapsed_s))
    assert finished.state == "FINISHED"
    assert finished.elapsed_s == pytest.approx(1e9 + 1, abs=2)
    assert len(told) < 100


def test_time_rule_stops_nodes_that_wait_for_each_other() -> None:
    """They are waited for until second 65; the last that happens is that they hear that time is over."""
    told: list[float] = []
    pause = "pause:1@0.5+1000"
    finished = run("ako", 3, {**PHANTOM, "time": 5}, pause, on_event=lambda event: told.append(event.elapsed_s))
    assert (finished.state, finished.stopped_by) == ("FINISHED", "time")
    assert "did not drain" in finished.reason
    assert finished.elapsed_s == told[-1] == max(told) == pytest.approx(5.0001)


def test_time_of_nodes_that_drain_once_a_pause_is_over_is_that_until_then() -> None:
    finished = run("ako", 3, {**PHANTOM, "time": 5}, "pause:1@0.5+20")
    assert (finished.state, finished.reason) == ("FINISHED", "")
    assert finished.elapsed_s == pytest.approx(20.5, abs=0.05)


def test_fault_after_the_end_changes_nothing() -> None:
    plain, declared = run("ako", 2, PHANTOM), run("ako", 2, PHANTOM, "fail:0@1000", "cut:0-1@2000")
    assert plain.elapsed_s == declared.elapsed_s
    assert declared.state == "FINISHED"


def test_simulator_of_a_fault_about_a_node_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Exception, match="nodes: 0 to 1"):
        Simulator(
            prepare(load_job("ako"), PHANTOM, 2).spec,
            ClusterModel(faults=(LinkFails(node=0, other=2, at_s=1),)),
            MEANS,
        )


def test_uneven_shares_of_links_are_drawn_by_the_seed_of_the_job() -> None:
    def lengths(seed: int, shares: str) -> list[float]:
        settings = LARGE | {"epochs": 0.2, "seed": seed}
        return [
            each.running_s
            for each in run("all_to_all", 4, settings, rate=12.5e6, shares=shares, message_s=1e-4).statistics
        ]

    assert lengths(0, "tcp") == lengths(0, "tcp")
    assert lengths(0, "tcp") != lengths(1, "tcp")
    assert lengths(0, "even") == lengths(1, "even")
