"""What is wrong with a setting is said about its key, whatever the field's annotation."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import pytest
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from ako_jobs.config import TrainingConfig
from ako_jobs.setting_values import listed, literals, required
from dataflow.errors import ConfigError


class Config(TrainingConfig):
    """Settings of a job of a user's own."""

    ring: PositiveInt
    share: Annotated[float, Field(ge=0, lt=1)] | Literal["all", "none"] = 0.5
    wait: NonNegativeInt | None = None
    scale: PositiveFloat = 1.0
    levels: tuple[int, ...] = ()
    depth: list[int] | int = 1
    place: str = ""
    port: int = Field(default=1024, gt=1023, le=65535)

    @field_validator("place")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ("", "here"):
            message = "there is no such place"
            raise ValueError(message)
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.scale >= 100 and not self.place:
            message = "a large scale needs a place"
            raise ValueError(message)
        return self


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "ring: must be given; write ring=value"),
        ({"ring": "round"}, "ring: must be a positive integer (got round)"),
        ({"share": "1"}, "share: must be a number >= 0 and < 1, all or none (got 1)"),
        ({"share": "nome"}, "share: must be a number >= 0 and < 1, all or none (got nome); did you mean 'none'?"),
        ({"wait": "-1"}, "wait: must be an integer >= 0 (got -1)"),
        ({"scale": "0"}, "scale: must be a positive number (got 0)"),
        ({"port": "80"}, "port: must be an integer > 1023 and <= 65535 (got 80)"),
        ({"place": "there"}, "place: there is no such place (got there)"),
        ({"scale": 100}, "a large scale needs a place"),
        ({"levels": ["a"]}, "levels: must be a valid integer, unable to parse string as an integer (got a)"),
        ({"depth": "a"}, "depth: must be a valid list (got a)"),
    ],
)
def test_parse_wrong_setting_is_one_sentence_about_its_key(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Config.parse(settings if not settings else {"ring": 1} | settings)
    assert str(raised.value) == said


def test_parse_unknown_key_offers_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"^unknown key \(got rnig\); did you mean 'ring'\? known: .*, ring, "):
        Config.parse({"ring": 1, "rnig": 1})


def test_parse_takes_text_for_every_kind_of_value() -> None:
    config = Config.parse({"ring": "3", "share": "all", "wait": "0", "scale": "2.5", "normalise": "false"})
    assert (config.ring, config.share, config.wait, config.scale, config.normalise) == (3, "all", 0, 2.5, False)


@pytest.mark.parametrize(
    ("key", "table", "sentence", "literal"),
    [
        ("ring", "integer", "a positive integer", ()),
        ("share", "number | all | none", "a number >= 0 and < 1, all or none", ("all", "none")),
        ("wait", "integer", "an integer >= 0", ()),
        ("place", "text", "text", ()),
        ("target", "number", "a number > 0 and <= 1", ()),
        ("normalise", "true | false", "true or false", ()),
        ("init", "uniform | he | glorot", "uniform, he or glorot", ("uniform", "he", "glorot")),
    ],
)
def test_setting_values_in_a_table_and_in_a_sentence(
    key: str, table: str, sentence: str, literal: tuple[str, ...]
) -> None:
    field = Config.model_fields[key]
    assert (listed(field), required(field), literals(field)) == (table, sentence, literal)


def test_setting_values_without_words_for_a_type_are_left_to_pydantic() -> None:
    assert required(Config.model_fields["levels"]) == ""


def test_config_target_of_a_phantom_is_refused() -> None:
    with pytest.raises(ConfigError, match="a phantom learns nothing, so it reaches no target; leave out target"):
        TrainingConfig.parse({"phantom": True, "target": 0.9})


def test_config_patience_with_a_phantom_is_refused() -> None:
    with pytest.raises(ConfigError, match="a phantom is not validated, so nobody loses patience with it; leave out"):
        TrainingConfig.parse({"phantom": True, "patience": 2})
