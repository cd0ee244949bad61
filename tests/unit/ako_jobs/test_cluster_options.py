from __future__ import annotations

from typing import Any

import pytest

from ako_jobs.cluster_options import ClusterOptions
from dataflow import ClusterModel, parse_fault
from dataflow.errors import ConfigError


def test_model_of_no_options_is_a_model_as_it_comes() -> None:
    assert ClusterOptions().model() == ClusterModel()


def test_model_of_every_option_has_them_in_bytes_and_seconds() -> None:
    options = ClusterOptions(
        bandwidth=("8mbit", "3=80kbit", "1gbit"),
        latency="20ms",
        shares="tcp",
        compute="gamma",
        step_time="500us",
        tasks=2,
        speed=("1=0.5",),
        cpu=0.4,
        cores=2,
        fault=("fail:2@10",),
    )
    assert options.model() == ClusterModel(
        rate=125e6,
        rates={3: 10_000.0},
        latency_s=0.02,
        shares="tcp",
        compute="gamma",
        step_s=0.0005,
        tasks=2,
        speeds={1: 0.5},
        cpu=0.4,
        cores=2,
        faults=(parse_fault("fail:2@10"),),
    )


def test_model_of_a_step_time_alone_has_constant_steps() -> None:
    assert ClusterOptions(step_time="2s").model() == ClusterModel(compute="constant", step_s=2.0)


def test_plus_adds_to_lists_and_replaces_the_rest() -> None:
    options = ClusterOptions(speed=("1=2",), tasks=2).plus("speed", "2=3").plus("tasks", "4")
    assert options == ClusterOptions(speed=("1=2", "2=3"), tasks=4)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"bandwidth": ("fast",)}, "not a bandwidth (got fast); write it like 100mbit or 1gbit"),
        ({"bandwidth": ("a=1gbit",)}, "not about a node (got a=1gbit); write it like 3=10mbit"),
        ({"bandwidth": ("0mbit",)}, "not a bandwidth (got 0mbit)"),
        ({"latency": "20"}, "not a time (got 20); write it like 100us, 5ms or 2s"),
        ({"shares": "fair"}, "--shares: must be 'even' or 'tcp' (got fair)"),
        ({"step_time": "-1ms"}, "not a time (got -1ms)"),
        ({"speed": ("2",)}, "not about a node (got 2); write it like 3=0.5"),
        ({"speed": ("2=fast",)}, "--speed: must be a valid number"),
        ({"compute": "slow"}, "--compute: must be 'measured', 'constant'"),
        ({"cores": 1025}, "--cores: must be less than or equal to 1024 (got 1025)"),
        ({"cpu": 1025}, "--cpu: must be less than or equal to 1024 (got 1025.0)"),
        ({"tasks": 1025}, "--tasks: must be less than or equal to 1024 (got 1025)"),
        ({"fault": ("fail:2",)}, "the fault cannot be read (got fail:2)"),
    ],
)
def test_model_of_an_option_that_cannot_be_used_says_so(said: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ClusterOptions(**said).model()
    assert error in str(raised.value)


def test_one_text_stands_for_itself_where_there_may_be_several() -> None:
    one = {"bandwidth": "1gbit", "speed": "3=0.5", "fault": "fail:2@10"}
    several = {key: (text,) for key, text in one.items()}
    assert ClusterOptions.model_validate(one) == ClusterOptions.model_validate(several)
