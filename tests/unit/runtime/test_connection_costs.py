"""What a message costs: the line through given seconds, and that two ends on this machine give some."""

import pytest

from dataflow.runtime.connection_costs import fit_costs, measure_connection


@pytest.mark.parametrize(
    ("seconds", "line"),
    [
        ({0: 0.5, 100: 0.75}, (0.5, 0.0025)),
        # Means 100 and 2; products of deviations 300, squares 20,000.
        ({0: 1.0, 100: 1.0, 200: 4.0}, (0.5, 0.015)),
        # Smaller messages that were dearer: by chance, so bytes cost nothing.
        ({0: 2.0, 100: 1.0}, (1.5, 0.0)),
        # A line that would begin below zero goes through zero: (100 * 1 + 200 * 4) / (100**2 + 200**2).
        ({100: 1.0, 200: 4.0}, (0.0, 0.018)),
    ],
)
def test_fit_costs_is_the_line_of_least_squares_that_is_nowhere_negative(
    seconds: dict[int, float], line: tuple[float, float]
) -> None:
    assert fit_costs(seconds) == pytest.approx(line)


def test_measure_connection_between_two_processes_gives_seconds_of_a_message_and_of_a_byte() -> None:
    message_s, byte_s = measure_connection(200_000)
    assert 0 < message_s + 200_000 * byte_s < 1
    assert byte_s >= 0
