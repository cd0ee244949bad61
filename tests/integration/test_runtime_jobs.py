from __future__ import annotations

import os
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import runtime_job

from dataflow.clock import SystemClock
from dataflow.engine.job_life import JobState
from dataflow.errors import AuthError, ConfigError, MasterError
from dataflow.observe.record import installed_versions, make_record
from dataflow.plan.job import JobSpec, StopRules
from dataflow.runtime.bundle import Bundle, make_bundle
from dataflow.runtime.client import Client
from dataflow.runtime.local_cluster import LocalCluster
from tests.clusters import shared_cluster

HERE = Path(__file__).parent
ENDLESS = 1_000_000

pytestmark = pytest.mark.xdist_group(__name__)  # these tests share a cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with shared_cluster(2) as running:
        yield running


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return make_bundle(HERE)


def spec(nodes: int = 2, stop: StopRules | None = None, **parameters: object) -> JobSpec:
    graph = runtime_job.build(**parameters)  # type: ignore[arg-type]
    return JobSpec(
        name="numbers", graph=graph, nodes=nodes, stop=stop or StopRules(), config={"lr": 0.1}, min_nodes=nodes
    )


def line_of(text: str) -> int:
    lines = (HERE / "runtime_job.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def wait_until_running(client: Client, job: str) -> None:
    for event in client.watch(job):
        if event.report is not None:
            return


def wait_until_free(client: Client) -> None:
    while any(node.job for node in client.nodes()):
        SystemClock().sleep(0.01)


def test_job_runs_to_its_end_and_everything_it_made_is_there(cluster: LocalCluster, bundle: Bundle) -> None:
    client = cluster.client
    job = client.submit(spec(count=10), bundle)
    events = list(client.watch(job))
    assert [event.state for event in events if event.state][-3:] == ["DEPLOYING", "RUNNING", "FINISHED"]
    assert [event.index for event in events if event.report] == sorted(e.index for e in events if e.report)
    received = Counter(event.report.fields["received"] for event in events if event.report)
    assert received == dict.fromkeys(range(1, 11), 4)

    status = client.job(job[:6])
    assert (status.state, status.stopped_by, status.reason) == (JobState.FINISHED, "epochs", "")
    assert status.node_names == ("node-0", "node-1")
    assert [each.node for each in status.statistics] == [0, 1]
    sent = status.statistics[0].sent_nbytes[1]
    assert sent == status.statistics[1].received_nbytes[0] > 0
    files = dict(client.artifacts(job))
    assert {name: len(data) for name, data in files.items()} == {
        "node-0/result.bin": 3_000_000,
        "node-1/result.bin": 3_000_001,
    }
    assert {(line.node, line.text) for line in client.logs(job, follow=True)} == {
        (0, "opened on node-0"),
        (0, "complained on node-0"),
        (1, "opened on node-1"),
        (1, "complained on node-1"),
    }
    submitted = JobSpec.model_validate_json(client.spec_json(job))
    record = make_record(submitted, events, status.statistics, installed_versions(), status.node_names)
    assert (record["stopped_by"], record["config"], len(record["reports"])) == ("epochs", {"lr": 0.1}, 40)  # type: ignore[arg-type]
    counted = {"source": 0, "target": 1, "sent_nbytes": sent, "received_nbytes": sent}
    assert counted.items() <= record["links"][0].items()  # type: ignore[index, union-attr, call-overload]


def test_watch_since_an_index_begins_there(cluster: LocalCluster, bundle: Bundle) -> None:
    job = cluster.client.submit(spec(count=3), bundle)
    cluster.client.wait(job)
    everything = list(cluster.client.watch(job))
    assert [event.index for event in everything] == list(range(len(everything)))
    assert list(cluster.client.watch(job, since=5)) == everything[5:]


@pytest.mark.parametrize("stop", ["target", "patience", "time"])
def test_stop_rule_ends_a_job_whose_sources_could_go_on(cluster: LocalCluster, bundle: Bundle, stop: str) -> None:
    rules = {
        "target": StopRules(report="receive.totals", target=0.2, hold=2),
        "patience": StopRules(report="receive.totals", metric="constant", patience=3),
        "time": StopRules(time_s=0.2),
    }[stop]
    job = cluster.client.submit(spec(stop=rules, count=ENDLESS, pause_s=0.001), bundle)
    status = cluster.client.wait(job)
    assert (status.state, status.stopped_by) == (JobState.FINISHED, stop)


def test_cancel_stops_a_running_job_and_frees_its_nodes(cluster: LocalCluster, bundle: Bundle) -> None:
    client = cluster.client
    job = client.submit(spec(count=ENDLESS, pause_s=0.005), bundle)
    wait_until_running(client, job)
    client.cancel(job)
    status = client.wait(job)
    assert (status.state, status.stopped_by, status.reason) == (JobState.CANCELLED, "cancel", "cancelled")
    client.cancel(job)
    assert client.job(job).state is JobState.CANCELLED
    wait_until_free(client)


def test_cancel_kills_a_job_that_does_not_react(cluster: LocalCluster, bundle: Bundle) -> None:
    client = cluster.client
    job = client.submit(spec(count=ENDLESS, pause_s=0.005, harm="hang", at=0), bundle)
    wait_until_running(client, job)
    client.cancel(job)
    assert client.wait(job).state is JobState.CANCELLED
    wait_until_free(client)


def test_operator_that_raises_fails_the_job_and_the_users_line_is_named(cluster: LocalCluster, bundle: Bundle) -> None:
    job = cluster.client.submit(spec(count=ENDLESS, pause_s=0.005, harm="raise", at=3), bundle)
    status = cluster.client.wait(job)
    assert status.state is JobState.FAILED
    where = f"runtime_job.py:{line_of('the line that the error names')}"
    for part in ("node-1", "'receive'", "ValueError: thirteen", where):
        assert part in status.reason
    assert "ValueError: thirteen" in [line.text for line in cluster.client.logs(job, follow=True)]
    assert "ValueError: thirteen" in status.last_lines


def test_operator_that_cannot_be_opened_fails_the_job_before_it_runs(cluster: LocalCluster, bundle: Bundle) -> None:
    job = cluster.client.submit(spec(harm="open"), bundle)
    events = list(cluster.client.watch(job))
    assert "RUNNING" not in [event.state for event in events]
    where = f"runtime_job.py:{line_of('no data here')}"
    assert re.search(rf"node-1.*ValueError: no data here.*{where}", events[-1].reason)


def test_killed_job_process_fails_a_job_that_needs_all_nodes_with_its_last_lines(
    cluster: LocalCluster, bundle: Bundle
) -> None:
    job = cluster.client.submit(spec(count=ENDLESS, pause_s=0.005, harm="kill", at=3), bundle)
    status = cluster.client.wait(job)
    assert status.state is JobState.FAILED
    assert "node node-1 (started again 3 times): its job process ended by SIGKILL" in status.reason
    assert "perhaps by the kernel because memory ran out" in status.reason
    assert status.failed_node == 1
    assert status.last_lines[-1] == "about to die"


HANGS = r"operator receive \(message\) hangs: its task has run for [0-9.]+ s"


def hanging(harm: str) -> JobSpec:
    asked = spec(count=ENDLESS, pause_s=0.005, harm=harm, at=3)
    return asked.model_copy(update={"watchdog_s": 0.5, "min_nodes": 2})


def test_operator_that_spins_fails_the_job_with_its_name_and_stacks(cluster: LocalCluster, bundle: Bundle) -> None:
    status = cluster.client.wait(cluster.client.submit(hanging("spin"), bundle))
    assert (status.state, status.failed_node) == (JobState.FAILED, 1)
    assert re.search(rf"node node-1 .*: {HANGS}", status.reason)
    assert any("runtime_job.py" in line and "do_harm" in line for line in status.last_lines)
    wait_until_free(cluster.client)


def test_operator_that_waits_for_ever_costs_its_process_which_tells_its_stacks(
    cluster: LocalCluster, bundle: Bundle
) -> None:
    client = cluster.client
    job = client.submit(hanging("hang"), bundle)
    found = next(each.change for each in client.watch(job) if each.change and "hangs" in each.change.reason)
    assert found.node == 1
    assert re.search(HANGS, found.reason)
    client.cancel(job)
    client.wait(job)
    told = [line.text for line in client.logs(job)]
    assert any("runtime_job.py" in line and "do_harm" in line for line in told)
    wait_until_free(client)


def test_operator_that_waits_for_messages_or_takes_long_at_first_does_not_hang(
    cluster: LocalCluster, bundle: Bundle
) -> None:
    slow = spec(count=2, pause_s=1.5).model_copy(update={"watchdog_s": 0.5})
    assert cluster.client.wait(cluster.client.submit(slow, bundle)).state is JobState.FINISHED


def test_failing_job_leaves_another_untouched(cluster: LocalCluster, bundle: Bundle) -> None:
    client = cluster.client
    good = client.submit(spec(nodes=1, count=200, pause_s=0.005), bundle)
    wait_until_running(client, good)
    # A graph whose module is in no bundle.
    bad = client.submit(spec(nodes=1))
    assert client.wait(bad).state is JobState.FAILED
    assert client.wait(good).state is JobState.FINISHED


def test_process_that_a_job_started_ends_with_it(cluster: LocalCluster, bundle: Bundle) -> None:
    client = cluster.client
    job = client.submit(spec(count=10, harm="spawn", at=3), bundle)
    assert client.wait(job).state is JobState.FINISHED
    wait_until_free(client)
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
    assert b"sleep\x001000\x00" not in commands


def test_job_that_needs_more_nodes_waits_and_says_why(cluster: LocalCluster, bundle: Bundle) -> None:
    client = cluster.client
    wait_until_free(client)
    job = client.submit(spec(nodes=8), bundle)
    status = client.job(job)
    assert (status.state, status.reason) == (JobState.PENDING, "needs 8 nodes, 2 attached")
    small = client.submit(spec(nodes=1, count=3), bundle)
    assert client.wait(small).state is JobState.FINISHED
    client.cancel(job)
    assert client.job(job).state is JobState.CANCELLED


def test_submitting_twice_with_one_operation_id_is_one_job(cluster: LocalCluster, bundle: Bundle) -> None:
    client, operation = cluster.client, secrets.token_hex(8)
    job = client.submit(spec(count=3), bundle, operation)
    assert client.submit(spec(count=3), bundle, operation) == job
    with pytest.raises(MasterError, match="another job"):
        client.submit(spec(count=4), bundle, operation)
    client.wait(job)


def test_bad_submissions_are_refused_and_change_nothing(cluster: LocalCluster, bundle: Bundle) -> None:
    client = cluster.client
    before = client.jobs()
    with pytest.raises(ConfigError, match="a bundle may have 16777216 bytes"):
        client.submit(spec(), Bundle("digest", bytes((16 << 20) + 1)))
    fixed = spec().model_copy(update={"graph": spec().graph.model_copy(update={"roles": ()})})
    with pytest.raises(ConfigError, match="which the graph lacks"):
        client.submit(fixed, bundle)
    assert client.jobs() == before


def test_wrong_token_and_unknown_job_are_told_apart(cluster: LocalCluster) -> None:
    with Client(cluster.client.address, "wrong") as client, pytest.raises(AuthError):
        client.jobs()
    with pytest.raises(MasterError, match="no such job"):
        next(cluster.client.watch("feed"))


def test_bundle_that_was_tampered_with_fails_the_job(cluster: LocalCluster, bundle: Bundle) -> None:
    job = cluster.client.submit(spec(), Bundle("0" * 64, bundle.data))
    assert "hash to" in cluster.client.wait(job).reason
