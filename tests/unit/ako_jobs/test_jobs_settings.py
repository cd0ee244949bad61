from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from ako_jobs.ako import Config
from ako_jobs.job_settings import JobSetting, job_settings


class Base(BaseModel):
    """Settings.

    Args:
        lr: learning rate; a text
            of two lines.
        low, high: bounds.

    Raises:
        Nothing: this is no setting.
    """

    lr: float
    low: int = 1
    high: int | None = None


class Derived(Base):
    """More settings.

    Args:
        mode: how.
        low: the lower bound.
    """

    mode: Literal["a", "b"] = "a"
    bare: bool = True


def test_job_settings_lists_types_defaults_and_meanings_of_all_bases() -> None:
    assert job_settings(Derived) == (
        JobSetting("lr", "number", None, True, "learning rate; a text of two lines."),
        JobSetting("low", "integer", 1, False, "the lower bound."),
        JobSetting("high", "integer", None, False, "bounds."),
        JobSetting("mode", "a | b", "a", False, "how."),
        JobSetting("bare", "true | false", True, False, ""),
    )


def test_job_settings_of_ako_all_have_a_meaning() -> None:
    settings = {setting.key: setting for setting in job_settings(Config)}
    assert settings["p"].values == "integer | auto"
    assert [key for key, setting in settings.items() if not setting.meaning] == []
