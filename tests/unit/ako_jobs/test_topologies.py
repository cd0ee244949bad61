from functools import wraps

import pytest
from topologies import driver, graph

from ako_jobs import ako, all_to_all, parameter_server, sparse, tree
from ako_jobs.jobs import load_job, prepare
from ako_jobs.models import network
from ako_jobs.worker import Setting
from dataflow import Keep
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.errors import ConfigError
from dataflow.plan.compile import compile_graph
from dataflow.plan.placement import place
from dataflow.quantities import bytes_per_second
from operators.clocks import FAR
from operators.follow import Follow
from operators.passes import Passes
from operators.schedule import Cosine, Schedule, Step

WORKER_EDGES = {
    "source.batches -> normalise.batches",
    "normalise.normalised -> compute.batches",
    "compute.progress -> due.progress",
    "due.shared -> examine.shares",
    "examine.examined -> validate.examined",
    "examine.over -> due.over",
    "keep_model.over -> due.over",
    "examine.whole -> validate.whole",
    "due.due -> sample.progress",
    "sample.samples -> divergence.samples",
    "due.in_turn -> keep_model.progress",
}
WORKER_CROSSING = {
    "sample.samples -> divergence.samples": ("all-to-one", True),
    "examine.examined -> validate.examined": ("all-to-one", True),
    "examine.over -> due.over": ("first-to-all", False),
    "keep_model.over -> due.over": ("first-to-all", False),
}
WORKER_STATE = {"replica", "statistics", "velocity", "average", "clocks", "newest", "samples", "roll", "course"}
WORKER_STATE |= {"examinations"}
JOINING_EDGES = {
    "talk.words -> listen.words",
    "talk.presence -> receive.words",
    "listen.begins -> send.begun",
    "listen.loans -> lend.loans",
    "lend.pieces -> borrow.pieces",
}
JOINING_CROSSING = {
    "talk.words -> listen.words": ("by-destination", True),
    "talk.presence -> receive.words": ("by-destination", True),
    "lend.pieces -> borrow.pieces": ("by-destination", False),
}
PULLING_EDGES = {
    "pulling.asks -> receive.arriving",
    "load.finished -> attend.finished",
    "load.enough -> attend.enough",
}


def edges(built):
    return {edge.name for edge in built.edges}


def crossing(built):
    return {edge.name: (edge.route.value, edge.loopback) for edge in built.edges if edge.route is not None}


def state(built, role="worker"):
    return {element.name for element in built.elements if element.role == role}


def test_ako_graph_accumulates_partitions_and_sends_to_named_nodes():
    built = graph(ako)
    assert edges(built) == WORKER_EDGES | JOINING_EDGES | {
        "compute.gradients -> accumulate.gradients",
        "accumulate.accumulated -> partition.accumulated",
        "partition.offers -> send.offers",
        "send.fragments -> receive.arriving",
        "receive.fragments -> apply.fragments",
        "apply.finished -> due.progress",
    }
    assert crossing(built) == WORKER_CROSSING | JOINING_CROSSING | {
        "send.fragments -> receive.arriving": ("by-destination", False)
    }
    assert state(built) == WORKER_STATE | {"window", "rotation", "loan"}


def test_ako_every_gradient_and_p_reach_clocks_and_rotation():
    built = graph(ako, p=4, every=3, tau=2)
    params = {element.name: element.params for element in built.elements}
    assert '"span":12' in params["clocks"]
    assert '"partitions":4' in params["rotation"]
    assert '"slack":2' in built.operator("compute").params
    assert '"every":3' in params["rotation"]
    assert built.operator("partition").kind == "operators.partition:Partition"


@pytest.mark.parametrize("settings", [{}, {"p": 3}, {"every": 1}, {"bandwidth": "100mbit"}])
def test_ako_chooses_while_it_runs_whatever_is_not_set(settings):
    assert graph(ako, **settings).operator("partition").kind == "operators.partition:LivePartition"


@pytest.mark.parametrize(("consistency", "slack"), [("bsp", "0"), ("ssp", "4"), ("async", "null")])
def test_all_to_all_graph_is_akos_without_accumulate_and_partition(consistency, slack):
    built, bsp = graph(all_to_all, consistency=consistency), consistency == "bsp"
    settled = {"listen.settled -> apply.begun"} if bsp else set()
    assert edges(built) == WORKER_EDGES | JOINING_EDGES | settled | {
        "compute.gradients -> send.gradients",
        "send.fragments -> receive.arriving",
        "receive.fragments -> apply.fragments",
        "apply.finished -> due.progress",
    }
    assert crossing(built) == WORKER_CROSSING | JOINING_CROSSING | {
        "send.fragments -> receive.arriving": ("by-destination", bsp)
    }
    assert state(built) == WORKER_STATE | {"window", "loan"} | ({"barrier"} if bsp else set())
    assert built.operator("apply").kind == f"operators.apply:{'ApplyMean' if bsp else 'ApplyFromPeers'}"
    compute = built.operator("compute").params
    assert f'"slack":{slack}' in compute
    assert f'"local":{"false" if bsp else "true"}' in compute
    assert f'"emits":"{"gradient" if bsp else "update"}"' in compute


@pytest.mark.parametrize(("settings", "span"), [({}, FAR), ({"consistency": "ssp", "tau": 3}, 3)])
def test_sparse_graph_sends_codes_to_all_and_to_the_worker_itself(settings, span):
    built = graph(sparse, **settings)
    assert edges(built) == edges(graph(all_to_all))
    assert crossing(built) == WORKER_CROSSING | JOINING_CROSSING | {
        "send.fragments -> receive.arriving": ("by-destination", True)
    }
    assert state(built) == WORKER_STATE | {"residual", "window", "loan", "ledger"}
    compute = built.operator("compute").params
    assert all(part in compute for part in ('"local":false', '"emits":"gradient"', '"slack":0'))
    assert f'"span":{span}' in built.operator("send").params
    clocks = next(element for element in built.elements if element.name == "clocks")
    assert f'"span":{span},"own":true' in clocks.params


@pytest.mark.parametrize(
    ("job", "settings", "operators", "at_pace"),
    [
        (ako, {}, ("compute",), False),
        (parameter_server, {"consistency": "ssp"}, ("compute", "serve"), False),
        (parameter_server, {"consistency": "bsp"}, ("compute", "serve"), False),
        (parameter_server, {"consistency": "async"}, ("compute", "serve"), True),
        (all_to_all, {"consistency": "ssp"}, ("compute",), False),
        (all_to_all, {"consistency": "async"}, ("compute", "apply"), True),
        (sparse, {"consistency": "async"}, ("compute", "apply"), True),
        (tree, {"consistency": "ssp"}, ("compute",), False),
        (tree, {}, ("compute", "absorb"), True),
    ],
)
def test_checkpoints_are_due_by_a_nodes_own_gradients_unless_nobody_waits(job, settings, operators, at_pace):
    every = f'"checkpoints":{{"images":640,"batch":32,"at_pace":{str(at_pace).lower()}}}'
    for operator in operators:
        assert every in graph(job, checkpoint_every=640, batch=32, **settings).operator(operator).params
        assert '"checkpoints":null' in graph(job, **settings).operator(operator).params


def test_checkpoints_are_kept_where_and_as_many_as_settings_say():
    settings = {"checkpoint_dir": "s3://bucket/ako", "keep_checkpoints": "5"}
    assert prepare(load_job("ako"), settings, 2).spec.keep == Keep(place="s3://bucket/ako", last=5)
    assert prepare(load_job("ako"), {}, 2).spec.keep == Keep(place="", last=3)


@pytest.mark.parametrize(
    ("consistency", "operator", "element"),
    [("bsp", "ServeMean", "barrier"), ("ssp", "Serve", "pulls"), ("async", "Serve", "pulls")],
)
def test_parameter_server_graph_pushes_and_pulls(consistency, operator, element):
    built = graph(parameter_server, consistency=consistency, **({"tau": 3} if consistency == "ssp" else {}))
    assert edges(built) == WORKER_EDGES | PULLING_EDGES | {
        "compute.gradients -> accumulate.gradients",
        "accumulate.accumulated -> partition.accumulated",
        "partition.offers -> send.offers",
        "send.fragments -> receive.arriving",
        "receive.fragments -> serve.fragments",
        "serve.weights -> answer.weights",
        "answer.sent -> pull.arriving",
        "pull.weights -> load.weights",
        "load.finished -> due.progress",
    }
    assert crossing(built) == WORKER_CROSSING | {
        "send.fragments -> receive.arriving": ("by-destination", False),
        "answer.sent -> pull.arriving": ("by-destination", False),
        "pulling.asks -> receive.arriving": ("by-destination", False),
    }
    assert built.operator("serve").kind == f"operators.serve:{operator}"
    assert state(built, "server") == {"shard", element} | ({"served", "images"} if operator == "Serve" else set())
    if operator == "Serve":
        assert f'"tau":{3 if consistency == "ssp" else "null"}' in built.operator("serve").params


def test_parameter_server_three_and_one_places_workers_first():
    assert place(graph(parameter_server, servers=1), 4) == {"worker": (0, 1, 2), "server": (3,)}


def test_parameter_server_all_puts_both_on_every_node_and_loops_back():
    built = graph(parameter_server, servers="all")
    assert place(built, 2) == {"worker": (0, 1), "server": (0, 1)}
    assert crossing(built) == WORKER_CROSSING | {
        "send.fragments -> receive.arriving": ("by-destination", True),
        "answer.sent -> pull.arriving": ("by-destination", True),
        "pulling.asks -> receive.arriving": ("by-destination", True),
    }


def test_parameter_server_by_layer_shards_whole_layers():
    built = graph(parameter_server, shard="layer", model="mlp")
    shard = next(element for element in built.elements if element.name == "shard")
    assert '"by":"layer","layers":[0,6500]' in shard.params  # 64 x 100 weights and 100 biases, then the output layer


@pytest.mark.parametrize(
    ("settings", "answer", "codec"),
    [
        ({}, "SendWeights", None),
        ({"codec": "int8"}, "SendChanges", '"codec":{"kind":"int8"}'),
        ({"codec": "topk", "n_push": 2, "n_fetch": 4}, "SendChanges", '"pushes":2'),
        ({"codec": "int8", "pull_codec": "none"}, "SendWeights", None),
        ({"codec": "topk", "pull_codec": "fp16"}, "SendChanges", '"pushes":null'),
        ({"pull_codec": "onebit"}, "SendChanges", '"codec":{"kind":"onebit"}'),
    ],
)
def test_parameter_server_answers_through_the_codec_of_pushes_or_its_own(settings, answer, codec):
    built = graph(parameter_server, **settings)
    assert built.operator("answer").kind == f"operators.send:{answer}"
    assert state(built, "server") == {"shard", "pulls", "served", "images"} | ({"shadows"} if codec else set())
    assert ("pulled" in state(built)) == (settings.get("n_fetch", 1) > 1)
    if codec:
        assert codec in next(element for element in built.elements if element.name == "shadows").params


def test_worker_without_normalisation_has_no_normalise():
    assert "source.batches -> compute.batches" in edges(graph(ako, normalise=False))


# Configuration


def test_setting_schedule_step_puts_milestones_at_epochs():
    config = ako.Config.parse({"schedule": "step", "milestones": "0.5, 8", "gamma": 0.2, "batch": 100, "warmup": 2})
    assert Setting.of(config).schedule == Schedule(
        lr=0.02, warmup=2, decay=Step(milestones=(0.5, 8), gamma=0.2), passes=Passes(images=1298, batch=100)
    )


def test_setting_schedule_cosine_takes_what_the_warm_up_leaves():
    config = ako.Config.parse({"schedule": "cosine", "lr_min": 0.001, "batch": 100, "warmup": 2, "epochs": 10})
    assert Setting.of(config).schedule == Schedule(
        lr=0.02, warmup=2, decay=Cosine(begin=2, end=10, lr_min=0.001), passes=Passes(images=1298, batch=100)
    )


def test_setting_schedule_cosine_with_nothing_but_warm_up_ends_with_it():
    config = ako.Config.parse({"schedule": "cosine", "batch": 100, "warmup": 2, "epochs": 1})
    assert Setting.of(config).schedule.decay == Cosine(begin=2, end=2)


def test_setting_local_steps_make_gradients_of_as_many_mini_batches():
    settings = {"batch": 10, "local_steps": 10, "checkpoint_every": 400, "average": 0.5}
    built = graph(ako, **settings)
    assert '"batch":100' in built.operator("source").params
    compute = built.operator("compute").params
    assert '"mini_batch":10' in compute
    assert '"averages_over":6.5' in compute  # half an epoch, and 13 gradients of one worker are an epoch
    assert '"checkpoints":{"images":400,"batch":100,"at_pace":false}' in compute
    (course,) = (element for element in built.elements if element.name == "course")
    assert course.form == "in steps of 100 images of digits without 0.1 of it"
    config = ako.Config.parse({"schedule": "cosine", "warmup": 2, "epochs": 10, **settings})
    assert Setting.of(config).passes == Passes(images=1298, batch=100)


@pytest.mark.parametrize(
    ("job", "settings", "follows"),
    [
        (ako, {}, False),
        (ako, {"codec": "int8"}, True),
        (all_to_all, {"codec": "int8", "consistency": "ssp"}, True),
        (all_to_all, {"codec": "int8", "consistency": "bsp"}, False),
        (parameter_server, {"codec": "int8"}, False),
    ],
)
def test_averages_go_without_what_is_owed_where_replicas_have_what_others_lack(job, settings, follows):
    """With a barrier everybody's replica has of a gradient what its code says."""
    built = graph(job, average=0.5, batch=100, **settings)
    ids = {operator.id for operator in built.operators}
    assert ("follow" in ids) == follows
    assert ('"averages_over":6.5' in built.operator("compute").params) != follows
    if follows:
        assert '"over":6.5' in built.operator("follow").params
        assert [edge.target for edge in built.edges if edge.source == "follow"] == ["due"]
    assert "follow" not in {operator.id for operator in graph(job, average=0, **settings).operators}


@pytest.mark.parametrize(("settings", "averaged"), [({}, True), ({"average": 0}, False), ({"phantom": True}, False)])
def test_weights_are_averaged_unless_told_otherwise_or_nobody_looks_at_them(settings, averaged):
    built = graph(ako, **settings)
    (state,) = [element for element in built.elements if element.name == "average"]
    assert ('"averages":true' in state.params) == averaged
    assert ('"averages_over":0.0' not in built.operator("compute").params) == averaged


@pytest.mark.parametrize(("job", "settings"), [(ako, {"p": 2}), (all_to_all, {"consistency": "ssp"})])
def test_averages_are_taken_once_what_is_owed_has_the_gradient(job, settings, monkeypatch):
    seen, process = [], Follow.process

    @wraps(process)
    def noted(self, progress, replica, average, window, node):
        seen.append((progress.step, window.newest))
        return process(self, progress, replica, average, window, node)

    monkeypatch.setattr(Follow, "process", noted)
    built = graph(job, average=0.1, codec="int8", epochs=1, **settings)
    MemoryDriver(compile_graph(built, 3)).execute()
    assert seen
    assert all(newest >= step for step, newest in seen)


def test_setting_optimizer_is_in_workers_and_warm_start():
    built = graph(ako, momentum=0.9, nesterov=True, weight_decay=0.001)
    want = '"optimizer":{"momentum":0.9,"look_ahead":1,"weight_decay":0.001'
    params = {element.name: element.params for element in built.elements}
    assert all(want in each for each in (built.operator("compute").params, params["velocity"], params["replica"]))


@pytest.mark.parametrize(
    ("job", "settings", "message"),
    [
        (ako, {"gradients_per_s": 90}, r"\(got gradients_per_s\); leave it out: each node measures its pace"),
        (ako, {"tua": 3}, r"unknown key \(got tua\); did you mean 'tau'"),
        (ako, {"p": 0}, r"^p: must be an integer >= 1 and <= 1000000 or auto \(got 0\)$"),
        (ako, {"p": "abc"}, r"^p: must be an integer >= 1 and <= 1000000 or auto \(got abc\)$"),
        (
            ako,
            {"p": "atuo"},
            r"^p: must be an integer >= 1 and <= 1000000 or auto \(got atuo\); did you mean 'auto'\?$",
        ),
        (ako, {"p": 10**20}, r"^p: must be an integer >= 1 and <= 1000000 or auto \(got 1"),
        (ako, {"every": 10**20}, r"^every: must be an integer >= 1 and <= 1000000 or auto \(got 1"),
        (parameter_server, {"servers": 0}, r"^servers: must be a positive integer or all \(got 0\)$"),
        (parameter_server, {"servers": "none"}, r"^servers: must be a positive integer or all \(got none\)$"),
        (ako, {"lr": 0}, r"^lr: must be a positive number \(got 0\)$"),
        (ako, {"lr": -1}, r"^lr: must be a positive number \(got -1\)$"),
        (ako, {"batch": "x"}, r"^batch: must be a positive integer \(got x\)$"),
        (ako, {"batch": "1.5"}, r"^batch: must be a positive integer \(got 1.5\)$"),
        (ako, {"patience": 0}, r"^patience: must be a positive integer \(got 0\)$"),
        (ako, {"tau": -1}, r"^tau: must be an integer >= 0 \(got -1\)$"),
        (ako, {"every": 0}, r"^every: must be an integer >= 1 and <= 1000000 or auto \(got 0\)$"),
        (ako, {"target": 1.5}, r"^target: must be a number > 0 and <= 1 \(got 1.5\)$"),
        (ako, {"normalise": "perhaps"}, r"^normalise: must be true or false \(got perhaps\)$"),
        (
            ako,
            {"data": "mnits"},
            r"^data: must be digits, mnist, fashion-mnist or cifar10 \(got mnits\); did you mean 'mnist'\?$",
        ),
        (ako, {"model": "papr"}, r"no such model \(got papr\); did you mean 'paper'"),
        (ako, {"model": "paper"}, "does not fit the images of 'digits'.*use model=auto"),
        (ako, {"momentum": 1}, r"^momentum: must be a number >= 0 and < 1 \(got 1\)$"),
        (ako, {"weight_decay": -1}, r"^weight_decay: must be a number >= 0 \(got -1\)$"),
        (ako, {"nesterov": True}, r"^nesterov needs momentum; add momentum=0.9$"),
        (ako, {"gamma": 1.5}, r"^gamma: must be a number > 0 and <= 1 \(got 1.5\)$"),
        (
            ako,
            {"schedule": "cosin"},
            r"^schedule: must be constant, step or cosine \(got cosin\); did you mean 'cosine",
        ),
        (ako, {"schedule": "step"}, r"^schedule=step needs milestones; write milestones=4,8$"),
        (ako, {"milestones": "8,4"}, r"^milestones: must be ascending numbers .*; write them like 4,8 \(got 8,4\)$"),
        (ako, {"milestones": "0,4"}, r"^milestones: must be ascending numbers of epochs, all above 0; "),
        (ako, {"milestones": "four"}, r"^milestones: must be ascending numbers .* \(got four\)$"),
        (ako, {"milestones": "1,nan"}, r"^milestones: must be ascending numbers .* \(got 1,nan\)$"),
        (ako, {"milestones": "1,inf"}, r"^milestones: must be ascending numbers .* \(got 1,inf\)$"),
        (ako, {"milestones": "4"}, r"^milestones is for schedule=step, and schedule is constant; add schedule=step$"),
        (ako, {"gamma": 0.5, "schedule": "cosine"}, r"^gamma is for schedule=step, and schedule is cosine"),
        (ako, {"lr_min": 0.01}, r"^lr_min is for schedule=cosine, and schedule is constant; add schedule=cosine$"),
        (ako, {"lr": 0.1, "lr_min": 0.2, "schedule": "cosine"}, r"^lr_min=0.2 is above lr=0.1; use a smaller lr_min$"),
        (ako, {"bandwidth": "fast"}, r"^bandwidth: must be auto or a bandwidth, .* 100mbit or 1gbit \(got fast\)$"),
        (all_to_all, {"consistency": "strong"}, r"^consistency: must be bsp, ssp or async \(got strong\)$"),
        (sparse, {"codec": "none"}, r"^codec: workers apply what a codec makes .* or run all_to_all \(got none\)$"),
        (sparse, {"codec": "treshold"}, r"^codec: there is no such codec; did you mean 'threshold'"),
        (sparse, {"codec": "threshold:tua=3"}, r"^codec: codec threshold has no such parameter; did you mean 'tau'"),
        (sparse, {"codec": "topk:density=2"}, r"^codec: density of codec topk is not valid; .*less than or equal to 1"),
        (sparse, {"phantom": True}, r"^a phantom has no gradients to code; leave out codec or phantom$"),
        (sparse, {"warm_up_nodes": 2}, r"^warm_up_nodes and warm_up_batch are for .*; add warm_up_epochs=0.2$"),
        (sparse, {"warm_up_batch": 2}, r"^warm_up_nodes and warm_up_batch are for .*; add warm_up_epochs=0.2$"),
        (sparse, {"warm_up_epochs": 2}, r"^warm_up_epochs needs warm_up_nodes or warm_up_batch"),
        (
            sparse,
            {"warm_up_epochs": 2, "warm_up_nodes": 0},
            r"^warm_up_nodes: must be a positive integer, .* \(got 0\)",
        ),
        (sparse, {"warm_up_epochs": 2, "warm_up_batch": "4;8"}, r"^warm_up_batch: must be a positive .* \(got 4;8\)"),
        (
            sparse,
            {"warm_up_epochs": "1,0", "warm_up_nodes": 1},
            r"^warm_up_epochs: must be epochs above 0, .*got 1,0\)",
        ),
        (
            sparse,
            {"warm_up_epochs": "0.2,0.8", "warm_up_nodes": "1,2,3"},
            r"^warm_up_nodes is for 3 stages, and warm_up_epochs for 2; write as many, or one$",
        ),
        (
            sparse,
            {"warm_up_epochs": "6,4", "warm_up_nodes": 1, "epochs": 10},
            r"^warm_up_nodes have images for warm_up_epochs=6,4, and epochs=10 are all: the others would never see",
        ),
        (
            sparse,
            {"warm_up_epochs": 1, "warm_up_batch": 4, "local_steps": 2},
            r"^warm_up_batch is of gradients of one mini-batch; leave out local_steps or warm_up_batch$",
        ),
        (
            sparse,
            {"warm_up_epochs": 1, "warm_up_batch": 9, "batch": 8},
            r"^warm_up_batch=9 is above batch=8; use a smaller warm_up_batch$",
        ),
        (sparse, {"consistency": "bsp"}, r"^consistency: must be ssp or async \(got bsp\)"),
        (sparse, {"tau": -1}, r"^tau: must be an integer >= 0 \(got -1\)$"),
        (ako, {"tau": "0.1", "codec": "threshold"}, r"^tau: must be an integer .*got 0.1.*codec=threshold:tau=0.1$"),
        (ako, {"tau": 4, "codec": "threshold"}, r"^tau=4 is the staleness bound; .* write codec=threshold:tau=4, and"),
        (sparse, {"tau": 0}, r"^tau is for consistency=ssp, and consistency is async; .*codec=threshold:tau=0$"),
        (sparse, {"tau": 4}, r"^tau is for consistency=ssp, and consistency is async; .*codec=threshold:tau=4$"),
        (parameter_server, {"tau": 0}, r"^tau is for consistency=ssp, and consistency is async; add consistency=ssp"),
        (all_to_all, {"tau": 0, "consistency": "async"}, r"^tau is for consistency=ssp, and consistency is async"),
        (parameter_server, {"tau": 0, "rule": "ssgd"}, r"^tau is for consistency=ssp, and consistency is bsp"),
        (tree, {"tau": 0.1}, r"^unknown key \(got tau\); the threshold of a codec is a part of it"),
        (ako, {"codec": "topk", "accumulate": False}, r"sent later, so it needs accumulate=true$"),
        (ako, {"codec": "int8", "phantom": True}, r"^a phantom has no gradients to code; leave out codec or phantom$"),
        (
            parameter_server,
            {"pull_codec": "thresold"},
            r"^pull_codec: there is no such codec; did you mean 'threshold'",
        ),
        (
            parameter_server,
            {"pull_codec": "topk", "phantom": True},
            r"^a phantom has no weights to code; leave out pull",
        ),
        (
            parameter_server,
            {"servers": 3, "shard": "layer", "model": "mlp"},
            r"^with shard=layer only 2 servers would own a part of the model \(got 3\); use servers=2, or fewer$",
        ),
        (parameter_server, {"n_push": 2, "n_fetch": 3}, r"n_fetch must be a multiple of n_push.*use n_fetch=2"),
        (parameter_server, {"n_fetch": 2, "consistency": "bsp"}, "consistency=bsp needs a push and a pull"),
        (parameter_server, {"n_fetch": 2, "consistency": "ssp"}, "consistency=ssp needs a push and a pull"),
    ],
)
def test_config_impossible_setting_says_what_to_do(job, settings, message):
    with pytest.raises(ConfigError, match=message):
        graph(job, **settings)


def test_config_holdout_that_leaves_nothing_says_what_to_do():
    with pytest.raises(ConfigError, match=r"leaves one part empty.*use holdout=0"):
        driver(ako, 2, holdout=0.0001, warm_start=0).execute()


@pytest.mark.parametrize(("text", "rate"), [("1gbit", 125e6), ("100 Mbit", 12.5e6), ("1.5kbit", 187.5), ("8bit", 1.0)])
def test_bytes_per_second_of_a_rate(text, rate):
    assert bytes_per_second(text) == rate


@pytest.mark.parametrize("text", ["", "100", "mbit", "-1mbit", "0gbit", "1tbit"])
def test_bytes_per_second_of_anything_else_raises(text):
    with pytest.raises(ConfigError, match="not a bandwidth"):
        bytes_per_second(text)


@pytest.mark.parametrize(
    ("name", "data", "n_layers"), [("auto", "mnist", 11), ("auto", "digits", 8), ("mlp", "mnist", 3)]
)
def test_network_by_name_and_data_set(name, data, n_layers):
    assert len(network(name, data, "uniform").layers) == n_layers


def test_prepare_warm_up_of_more_nodes_than_there_are_is_refused():
    settings = {"warm_up_epochs": 1, "warm_up_nodes": 3}
    assert prepare(load_job("sparse"), settings, 3).spec.nodes == 3
    with pytest.raises(ConfigError, match=r"^3 nodes cannot begin where there are 2; use more nodes, or 2 at most"):
        prepare(load_job("sparse"), settings, 2)
