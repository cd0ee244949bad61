"""Workers that take turns at one server: the rules without any engine."""

from dataclasses import dataclass

import numpy as np

from operators.update_rules import Memory, Push, Rule


@dataclass
class Turns:
    """What a server keeps and has sent, and what workers do: answer follows push, one worker after the other.

    Args:
        rule: the server's.
        workers: how many.
        start: weights of the start.
    """

    rule: Rule
    workers: int
    start: np.ndarray

    def __post_init__(self):
        self.weights = self.start.astype(np.float32)
        self.memory: Memory = self.rule.init(self.weights, self.workers)
        for worker in range(self.workers):
            self.rule.join(self.weights, self.memory, worker)
        self.updates = 0
        self.sent = [(0, self.weights.copy()) for _ in range(self.workers)]

    def push(self, worker, gradient, rate):
        at, sent = self.sent[worker]
        push = Push(worker, np.asarray(gradient, np.float32), rate, self.updates - at, sent)
        self.rule.update(self.weights, self.memory, push)
        self.updates += 1
        self.sent[worker] = (self.updates, self.rule.view(self.weights, self.memory, worker))

    def replica(self, worker):
        return self.sent[worker][1]

    def master(self):
        return self.rule.master(self.weights, self.memory)


def alternate(rule, updates, *, workers=2, rate=0.1):
    """Master weights after each of so many updates on J = theta^2 / 2 from theta = 1, in strict turns."""
    turns = Turns(rule, workers, np.ones(1))
    found = []
    for number in range(updates):
        worker = number % workers
        turns.push(worker, turns.replica(worker), rate)
        found.append(float(turns.master()[0]))
    return found
