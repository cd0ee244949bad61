"""How well the simulator foretells a run: the same job on real nodes and in virtual time, side by side.

    ako run JOB ... --nodes N --out REAL          on the cluster in question, such as hosts with shaped links
    python benchmarks/simulated_against_real.py REAL --bandwidth 100mbit --latency 200us --speed 0=0.4 --speed 1=0.4

The job is simulated with the settings in REAL/config.json, p included if the run chose one, on the cluster that the
options describe, with task times measured on this machine; of a lab's hosts the share of a core that they really got,
which is less than the one that was asked for (docs/simulator.md). Printed are, for both, the seconds and images until
the target had been held, the seconds in all, gradients, bytes and mean staleness, and their ratios. The aim is a time
to accuracy within 15% and bytes within 2%.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ako_jobs.cluster_options import ClusterOptions
from ako_jobs.simulate import simulate

CLOSE = {"seconds to the target": 0.15, "bytes": 0.02}


def figures(record: dict[str, Any], target: float, hold: int) -> dict[str, float | None]:
    """What is compared of a run's record; None for what it never reached."""
    totals, held, reached = record["totals"], 0, None
    for report in record["reports"]:
        if report["port"] == "validate.results":
            held = held + 1 if report["accuracy"] >= target else 0
            if held == hold and reached is None:
                reached = report
    return {
        "seconds to the target": reached and reached["time_s"],
        "images to the target": reached and reached["images"],
        "seconds": record["run_s"],
        "gradients": totals["gradients"],
        "bytes": totals["sent_nbytes"],
        "staleness": totals["staleness_mean"],
    }


def main() -> None:
    """Simulate what was run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of the real run, as --out left it")
    parser.add_argument("--job", default="", help="the job, if its name is not what it is started by")
    parser.add_argument("--bandwidth", action="append", default=[])
    parser.add_argument("--latency", default="")
    parser.add_argument("--speed", action="append", default=[])
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--target", type=float, default=0.98)
    parser.add_argument("--hold", type=int, default=2)
    options = parser.parse_args()
    asked = json.loads((options.run / "config.json").read_text())
    real = json.loads((options.run / "record.json").read_text())
    cluster = ClusterOptions(
        bandwidth=tuple(options.bandwidth), latency=options.latency, speed=tuple(options.speed), tasks=options.tasks
    )
    result = simulate(options.job or asked["name"], asked["config"], nodes=asked["nodes"], model=cluster.model())
    simulated: Any = result.record
    both = [figures(record, options.target, options.hold) for record in (real, simulated)]
    print(f"{'':24}{'real':>16}{'simulated':>16}{'ratio':>9}")
    for name, measured in both[0].items():
        foretold = both[1][name]
        ratio = foretold / measured if measured and foretold is not None else None
        verdict = ""
        if name in CLOSE and ratio is not None:
            verdict = f"   within {CLOSE[name]:.0%}: {'yes' if abs(ratio - 1) <= CLOSE[name] else 'no'}"
        shown = [f"{value:16,.2f}" if value is not None else f"{'never':>16}" for value in (measured, foretold)]
        print(f"{name:24}{''.join(shown)}{'' if ratio is None else f'{ratio:9.3f}'}{verdict}")


if __name__ == "__main__":
    main()
