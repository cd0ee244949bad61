from dataflow.testing.operator_harness import Harness
from operators.advance import Advance, Reached
from operators.messages import Progress


def test_advance_reports_every_progress_of_its_node():
    harness = Harness(Advance())
    for step in (5, 10):
        harness.send(Progress(step, 16 * step, step / 10, 0.5))
    assert harness.emitted("reached") == [Reached(5, 80, 0.5), Reached(10, 160, 1.0)]
