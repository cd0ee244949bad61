import json
from typing import get_args

import pytest

from ako_jobs import ako, all_to_all, parameter_server, sparse, tree
from ako_jobs.jobs import load_job, prepare
from ako_jobs.parameter_server import Config, build
from ako_jobs.update_rules import RuleName
from dataflow.errors import ConfigError
from operators.optimizer import Sgd
from operators.update_rules import (
    Asgd,
    DanaDc,
    DanaZero,
    DcAsgd,
    Easgd,
    GapAware,
    Lwp,
    MultiAsgd,
    NagAsgd,
    StalenessAware,
    YellowFin,
)

KEPT = {"momentum": 0.9, "weight_decay": 0.01}


def graph(**settings):
    return build(Config.parse(settings))


def params(built, name):
    texts = {each.id: each.params for each in built.operators} | {each.name: each.params for each in built.elements}
    return json.loads(texts[name])


@pytest.mark.parametrize(
    ("settings", "rule", "optimizer"),
    [
        ({}, Asgd(), Sgd()),
        ({"weight_decay": 0.01}, Asgd(weight_decay=0.01), Sgd()),
        ({"weight_decay": 0.01, "local_steps": 2}, Asgd(), Sgd(weight_decay=0.01)),
        (KEPT, Asgd(), Sgd(**KEPT, scaled=True)),
        ({"momentum": 0.9, "nesterov": True}, Asgd(), Sgd(momentum=0.9, look_ahead=1, scaled=True)),
        ({"rule": "ssgd", **KEPT}, Asgd(), Sgd(**KEPT, scaled=True)),
        ({"rule": "ssgd", "weight_decay": 0.01}, Asgd(), Sgd(weight_decay=0.01)),
        ({"n_push": 2, "n_fetch": 2, "weight_decay": 0.01}, Asgd(), Sgd(weight_decay=0.01)),
        ({"rule": "staleness-aware", "weight_decay": 0.01}, StalenessAware(weight_decay=0.01), Sgd()),
        ({"rule": "dana-slim", **KEPT}, Asgd(), Sgd(**KEPT, look_ahead=1, scaled=True)),
        ({"rule": "nag-asgd", **KEPT}, NagAsgd(**KEPT), Sgd()),
        ({"rule": "multi-asgd", **KEPT}, MultiAsgd(**KEPT), Sgd()),
        ({"rule": "lwp", **KEPT}, Lwp(**KEPT), Sgd()),
        ({"rule": "dana-zero", **KEPT}, DanaZero(**KEPT), Sgd()),
        ({"rule": "dana-dc", **KEPT, "dc_lambda": 1}, DanaDc(**KEPT, strength=1), Sgd()),
        ({"rule": "dc-asgd"}, DcAsgd(momentum=0.95, strength=2), Sgd()),
        ({"rule": "dc-asgd-a"}, DcAsgd(momentum=0.95, strength=2, smoothing=0.95), Sgd()),
        ({"rule": "dc-asgd", "momentum": 0}, DcAsgd(momentum=0, strength=2), Sgd()),
        ({"rule": "yellowfin"}, YellowFin(lr=1e-4, momentum=0), Sgd()),
        ({"rule": "dc-asgd-a", **KEPT}, DcAsgd(**KEPT, strength=2, smoothing=0.95), Sgd()),
        ({"rule": "yellowfin", "lr": 0.5}, YellowFin(lr=0.5), Sgd()),
        ({"rule": "gap-aware", **KEPT}, GapAware(), Sgd(**KEPT, scaled=True)),
        ({"rule": "gap-aware", "weight_decay": 0.01}, GapAware(weight_decay=0.01), Sgd()),
        ({"rule": "easgd", "alpha": 0.3}, Easgd(alpha=0.3), Sgd()),
    ],
)
def test_rule_says_what_servers_and_workers_do(settings, rule, optimizer):
    config = Config.parse(settings)
    assert (config.server_rule, config.worker_optimizer) == (rule, optimizer)


@pytest.mark.parametrize(
    ("settings", "rule", "consistency"),
    [
        ({}, "asgd", "async"),
        ({"consistency": "bsp"}, "ssgd", "bsp"),
        ({"rule": "ssgd"}, "ssgd", "bsp"),
        ({"n_push": "2", "n_fetch": "4"}, "downpour", "async"),
        ({"n_push": "1"}, "asgd", "async"),
        ({"rule": "dana-zero", "momentum": 0.9, "consistency": "ssp"}, "dana-zero", "ssp"),
    ],
)
def test_rule_and_consistency_follow_from_each_other_where_one_is_left_out(settings, rule, consistency):
    config = Config.parse(settings)
    assert (config.rule, config.consistency) == (rule, consistency)


@pytest.mark.parametrize("rule", get_args(RuleName))
def test_every_rule_builds_a_sound_job(rule):
    needs = {"downpour": {"n_push": 2, "n_fetch": 2}}.get(rule, {"momentum": 0.9})
    prepared = prepare(load_job("parameter_server"), {"rule": rule, **needs}, 3)
    assert prepared.spec.config["rule"] == rule


def test_dana_slim_sends_updates_that_servers_subtract():
    built = graph(rule="dana-slim", momentum=0.9)
    assert params(built, "compute")["emits"] == "update"
    assert params(built, "serve")["schedule"] is None
    assert params(graph(), "serve")["schedule"]["lr"] == 0.02


@pytest.mark.parametrize("rule", ["asgd", "ssgd", "downpour", "staleness-aware", "gap-aware", "easgd", "dana-slim"])
def test_workers_momentum_has_the_rate_in_the_velocity_and_servers_add_none(rule):
    several = {"n_push": 2, "n_fetch": 4} if rule == "downpour" else {}
    built = graph(rule=rule, momentum=0.9, **several)
    assert params(built, "compute")["optimizer"]["scaled"]
    assert params(built, "compute")["emits"] == "update"
    assert params(built, "serve")["schedule"] is None


def test_rules_that_say_their_own_defaults_have_them_in_the_whole_job():
    assert params(graph(rule="yellowfin"), "compute")["schedule"]["lr"] == 1e-4
    assert params(graph(rule="yellowfin", lr=0.5), "compute")["schedule"]["lr"] == 0.5
    assert Config.parse({"rule": "dc-asgd"}).momentum == 0.95


def test_weights_are_averaged_by_default_where_workers_hold_the_model():
    plain = ({}, {"rule": "asgd"}, {"consistency": "bsp"}, {"n_push": 4})
    assert {Config.parse(settings).average for settings in plain} == {0.05}
    others = {rule: Config.parse({"rule": rule, "momentum": 0.5}).average for rule in ("lwp", "dana-zero", "dana-slim")}
    assert {**others, "easgd": Config.parse({"rule": "easgd"}).average} == dict.fromkeys([*others, "easgd"], 0)
    assert Config.parse({"rule": "easgd", "average": 0.1}).average == 0.1


def test_rule_is_what_the_server_keeps_for():
    assert params(graph(rule="dana-zero", momentum=0.9), "served")["rule"]["kind"] == "dana-zero"


def test_velocity_is_where_the_momentum_is():
    assert params(graph(rule="dana-slim", momentum=0.9), "velocity")["optimizer"]["momentum"] == 0.9
    assert params(graph(rule="dana-zero", momentum=0.9), "velocity")["optimizer"]["momentum"] == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rule": "dana-slm"}, r"rule: must be asgd, .* \(got dana-slm\); did you mean 'dana-slim'\?"),
        ({"rule": "DANA-Slim"}, r"\(got DANA-Slim\); did you mean 'dana-slim'\?"),
        ({"rule": ""}, r"rule: must be asgd, .* \(got ''\)$"),
        *(
            ({"rule": rule}, f"^rule={rule} needs momentum; add momentum=0.9$")
            for rule in ("nag-asgd", "multi-asgd", "lwp", "dana-zero", "dana-slim", "dana-dc")
        ),
        ({"rule": "dana-slim", "momentum": 0}, "rule=dana-slim needs momentum"),
        ({"rule": "dana-slim", "momentum": 1}, r"momentum: must be a number >= 0 and < 1 \(got 1\)"),
        ({"rule": "dana-slim", "momentum": "nan"}, r"momentum: must be a number >= 0 and < 1 \(got nan\)"),
        ({"rule": "dana-slim", "momentum": 0.9, "weight_decay": -1}, "weight_decay: must be a number >= 0"),
        ({"rule": "ssgd", "consistency": "ssp"}, "rule=ssgd is consistency=bsp, not ssp; leave out consistency"),
        ({"rule": "ssgd", "consistency": "async"}, "rule=ssgd is consistency=bsp, not async; leave out consistency"),
        *(
            (
                {"rule": rule, "momentum": 0.9, "local_steps": 2},
                f"^rule={rule} counts gradients of one mini-batch; leave out local_steps, or use rule=asgd, downpour,",
            )
            for rule in ("nag-asgd", "multi-asgd", "lwp", "dc-asgd", "dc-asgd-a", "dana-zero", "dana-dc", "yellowfin")
        ),
        ({"rule": "ssgd", "n_fetch": 2}, "consistency=bsp needs a push and a pull per mini-batch"),
        *(
            ({"rule": rule, **more, "consistency": "bsp"}, f"rule={rule} is asynchronous, .* leave out consistency")
            for rule, more in (("asgd", {}), ("lwp", {"momentum": 0.9}), ("downpour", {"n_push": 2, "n_fetch": 2}))
        ),
        *(
            ({"rule": rule, "momentum": 0.9, "n_fetch": 2}, f"rule={rule} needs a push and a pull per mini-batch; use")
            for rule in ("asgd", "easgd", "dana-dc", "yellowfin")
        ),
        (
            {"rule": "downpour", "n_push": 2, "n_fetch": 3},
            r"n_fetch must be a multiple .*\(got \(2, 3\)\); use n_fetch=2",
        ),
        ({"rule": "downpour", "n_push": 0}, r"n_push: must be a positive integer \(got 0\)"),
        (
            {"rule": "downpour", "n_push": 2, "n_fetch": 2, "consistency": "ssp"},
            "consistency=ssp needs a push and a pull",
        ),
        ({"rule": "downpour"}, "add n_push=4 n_fetch=4, or use rule=asgd"),
        *(
            ({"rule": rule, "momentum": 0.9, "nesterov": True}, f"rule={rule} says itself whether momentum looks ahead")
            for rule in ("nag-asgd", "multi-asgd", "lwp", "dc-asgd", "dana-zero", "dana-slim", "dana-dc", "yellowfin")
        ),
        ({"rule": "easgd", "nesterov": True}, "nesterov needs momentum; add momentum=0.9"),
        ({"rule": "dc-asgd", "dc_lambda": -1}, r"dc_lambda: must be a number >= 0 \(got -1\)"),
        ({"rule": "dc-asgd", "dc_lambda": "inf"}, r"dc_lambda: must be a number >= 0 \(got inf\)"),
        (
            {"rule": "dana-zero", "momentum": 0.9, "dc_lambda": 1},
            "dc_lambda is for .* and rule is dana-zero; leave it out",
        ),
        ({"rule": "easgd", "alpha": 1}, r"alpha: must be a number > 0 and < 1 \(got 1\)"),
        ({"consistency": "bsp", "alpha": 0.5}, "alpha is for rule=easgd, and rule is ssgd"),
        ({"dc_lambda": 1}, "dc_lambda is for rule=dc-asgd or dc-asgd-a or dana-dc, and rule is asgd; leave it out"),
        ({"alpha": 0.5}, "alpha is for rule=easgd, and rule is asgd"),
        *(
            ({"rule": rule, "momentum": 0.9, codec: "int8"}, f"rule={rule} compares weights .*; add pull_codec=none")
            for rule in ("gap-aware", "dc-asgd", "dc-asgd-a", "dana-dc")
            for codec in ("codec", "pull_codec")
        ),
        ({"rule": "yellowfin", "servers": 2}, r"several servers have parts of it each \(got 2\); use servers=1"),
        ({"rule": "yellowfin", "servers": "all"}, "several servers have parts of it each .got all.; use servers=1"),
        ({"rule": "yellowfin", "model": "resnet20"}, "gradients of this one come in parts"),
    ],
)
def test_rule_that_cannot_be_run_is_refused_with_the_reason(settings, said):
    with pytest.raises(ConfigError, match=said):
        graph(**settings)


def test_codec_of_pushes_goes_with_a_rule_that_looks_at_what_was_sent():
    assert params(graph(rule="dana-dc", momentum=0.9, codec="int8", pull_codec="none"), "serve")["codec"]


@pytest.mark.parametrize("job", [ako, all_to_all, sparse, tree])
def test_topology_without_servers_says_where_rules_are(job):
    with pytest.raises(ConfigError, match=r"unknown key \(got rule\); .* ako run parameter_server rule="):
        job.Config.parse({"rule": "dana-slim"})


def test_parameter_server_module_is_the_job():
    assert load_job("parameter_server").config is parameter_server.Config
