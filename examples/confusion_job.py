"""Post-processing of one's own: a confusion matrix in the results of an all-to-all job.

    ako run examples/confusion_job.py epochs=3 --nodes 2 --out results
    cat results/confusion.csv

Row i, column j: test images of class i that the model takes for class j, at the newest validation.
"""

import numpy as np

from ako_jobs import all_to_all
from dataflow import Artifact, Emissions, In, LogicalGraph, Operator
from operators.messages import Predictions

Config = all_to_all.Config


class Confusion(Operator):
    """Write what a validation predicted as ``confusion.csv``; each one replaces the one before."""

    classes: int = 10
    predictions = In(Predictions)

    def process(self, message: Predictions) -> Emissions:
        """The matrix as text."""
        matrix = np.zeros((self.classes, self.classes), int)
        np.add.at(matrix, (message.labels, message.predicted), 1)
        yield Artifact("confusion.csv", "".join(",".join(map(str, row)) + "\n" for row in matrix).encode())


def build(config: all_to_all.Config) -> LogicalGraph:
    """All-to-all's graph with `Confusion` behind its validations."""
    graph = all_to_all.build(config).with_operator("confusion", Confusion(), role="worker")
    return graph.connect("validate.predictions", "confusion")
