"""Time to 98% test accuracy on MNIST over slow links: `ako` with a codec against DDP with PowerSGD, and plain DDP.

    sudo python benchmarks/lab_slow.py --data-dir DIR --json slow.json --markdown slow.md
    sudo python benchmarks/lab_slow.py --data-dir DIR --rates 10mbit --seeds 0 --target 0.3 --cpu 0

Four hosts of a lab for each rate, one rate after the other; on each the systems take turns, one seed after another.
What they have in common, and their settings, are those of `lab_mnist.py`. Files are written after each run, so that
what was measured is not lost when one breaks off.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from lab_mnist import HOOKS, JOBS, SETTINGS, Run, bench, lab_parser, settings_of
from mnist_one_node import HOLD

SYSTEMS = ("ako", "ddp_powersgd", "ddp")
RATES = ("10mbit", "20mbit", "100mbit")

HEAD = ("links", "system", "reached", "seconds, median", "of each seed", "MB in all", "images/s", "times ako's")

Measured = Mapping[str, Sequence[Run]]
"""Runs by the rate of the links that they ran on."""


def table(measured: Measured, systems: Sequence[str]) -> str:
    """Rows in Markdown: a run that never got there counts in no median; ratios are medians over the same seeds."""
    lines = ["| " + " | ".join(HEAD) + " |", "| --- | --- | --- | ---: | --- | ---: | ---: | ---: |"]
    for rate, runs in measured.items():
        held = {(run.system, run.seed): found[0] for run in runs if (found := run.reached)}
        for system in systems:
            mine = [run for run in runs if run.system == system]
            if not mine:
                continue
            times = [held.get((system, run.seed)) for run in mine]
            known = [seconds for seconds in times if seconds is not None]
            ratios = [
                held[system, run.seed] / held[systems[0], run.seed]
                for run in mine
                if (system, run.seed) in held and (systems[0], run.seed) in held
            ]
            row = (
                rate,
                system,
                f"{len(known)} of {len(mine)}",
                f"{median(known):.1f}" if known else "",
                ", ".join("never" if seconds is None else f"{seconds:.1f}" for seconds in times),
                f"{median(run.sent_nbytes for run in mine) / 1e6:,.1f}",
                f"{median(run.images_per_s for run in mine):,.0f}",
                f"{median(ratios):.2f}" if ratios and system != systems[0] else "",
            )
            lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def result(measured: Measured, options: argparse.Namespace) -> dict[str, Any]:
    """Everything that was measured."""
    common = {"hosts": options.hosts, "cpu": options.cpu, "target": options.target, "hold": HOLD}
    return common | {"rates": {rate: [run.to_json() for run in runs] for rate, runs in measured.items()}}


def parse() -> argparse.Namespace:
    """The command line."""
    parser = lab_parser(__doc__)
    parser.add_argument("--rates", nargs="+", default=list(RATES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--systems", nargs="+", choices=[*JOBS, *HOOKS], default=list(SYSTEMS))
    parser.add_argument(
        "--set", action="append", default=[], metavar='SYSTEM="KEY=VALUE ..."', help="besides those of lab_mnist.py"
    )
    parser.add_argument("--limit", type=float, default=400.0, help="seconds of a run")
    parser.add_argument("--target", type=float, default=0.98, help="accuracy to be held")
    parser.add_argument("--validate-every", type=int, default=12_000, help="images between two validations")
    parser.add_argument("--markdown", type=Path, help="write the table there")
    return parser.parse_args()


def main() -> None:
    options = parse()
    options.first_validates = False
    chosen = {system: dict(settings) for system, settings in SETTINGS.items()}
    for text in options.set:
        system, _, words = text.partition("=")
        chosen[system] |= settings_of(words)
    measured: dict[str, list[Run]] = {}
    for rate in options.rates:
        runs = measured[rate] = []
        options.rate = rate
        with bench(options) as where:
            for seed in options.seeds:
                for system in options.systems:
                    runs.append(where.run(system, chosen[system], seed))
                    if options.json:
                        options.json.write_text(json.dumps(result(measured, options), indent=1) + "\n")
                    if options.markdown:
                        options.markdown.write_text(table(measured, options.systems) + "\n")
    print("\n" + table(measured, options.systems))


if __name__ == "__main__":
    main()
