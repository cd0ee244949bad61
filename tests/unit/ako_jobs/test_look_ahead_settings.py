import json

import pytest

from ako_jobs import ako, all_to_all, parameter_server, sparse, tree
from dataflow.errors import ConfigError
from operators.optimizer import Sgd

AHEAD = {"momentum": 0.9, "look_ahead": 3}


def params(built, name):
    texts = {each.id: each.params for each in built.operators} | {each.name: each.params for each in built.elements}
    return json.loads(texts[name])


@pytest.mark.parametrize("job", [ako, all_to_all])
@pytest.mark.parametrize(
    ("settings", "optimizer"),
    [
        ({}, Sgd()),
        ({"momentum": 0.9}, Sgd(momentum=0.9)),
        ({"momentum": 0.9, "nesterov": True}, Sgd(momentum=0.9, look_ahead=1)),
        ({**AHEAD, "weight_decay": 0.01}, Sgd(momentum=0.9, look_ahead=3, weight_decay=0.01, scaled=True)),
    ],
)
def test_look_ahead_is_in_what_workers_make_of_gradients(job, settings, optimizer):
    built = job.build(job.Config.parse(settings))
    for name in ("compute", "velocity"):
        assert Sgd.model_validate(params(built, name)["optimizer"]) == optimizer
    assert params(built, "compute")["emits"] == "update"


@pytest.mark.parametrize(
    ("job", "settings", "said"),
    [
        (ako, {"look_ahead": 3}, r"^look_ahead needs momentum; add momentum=0.9, with a tenth of the lr$"),
        (all_to_all, {"look_ahead": 1}, "^look_ahead needs momentum"),
        (
            ako,
            {**AHEAD, "nesterov": True},
            "nesterov is look_ahead=1; leave one out$",
        ),
        (
            ako,
            {**AHEAD, "accumulate": False},
            "look_ahead needs all updates to arrive, and accumulate=false loses some",
        ),
        (ako, {**AHEAD, "look_ahead": -1}, r"^look_ahead: must be an integer >= 0 \(got -1\)$"),
        (ako, {**AHEAD, "look_ahead": 1.5}, r"^look_ahead: must be an integer >= 0 \(got 1.5\)$"),
        (ako, {**AHEAD, "look_ahead": "far"}, r"^look_ahead: must be an integer >= 0 \(got far\)$"),
        (ako, {"look_ahaed": 3}, "did you mean 'look_ahead'"),
        (
            all_to_all,
            {**AHEAD, "consistency": "bsp"},
            "no update is under way .* use nesterov=true, or ssp",
        ),
        *((job, AHEAD, "it is for ako and all_to_all") for job in (sparse, tree)),
        (parameter_server, AHEAD, r"\(got look_ahead\); it is for ako .* with parameter_server use rule=dana-slim"),
    ],
)
def test_look_ahead_that_means_nothing_is_refused_with_the_reason(job, settings, said):
    with pytest.raises(ConfigError, match=said):
        job.Config.parse(settings)
