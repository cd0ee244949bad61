from __future__ import annotations

from ako_jobs.validations import validations


def test_validations_are_in_the_order_in_which_they_were_told_but_the_final_one_is_last() -> None:
    first, final, other = {"accuracy": 0.5}, {"accuracy": 0.9, "final": True}, {"accuracy": 0.8, "final": False}
    assert validations([first, {"epoch": 1.0}, final, {"accuracy": None}, other]) == [first, other, final]
