"""Test accuracy on MNIST of every topology with its default settings, on node processes of this machine.

    python benchmarks/mnist_topologies.py --data-dir DIR [--seeds 1] [key=value ...]

Prints a row per topology and seed: the last three validations, images per second, bytes sent, seconds. The claim in
docs/results.md is that each of the last three validations holds at least 98.7%.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ako_jobs.run import run

TOPOLOGIES = {
    "ako, 4 workers": ("ako", {}),
    "parameter_server, 3+1": ("parameter_server", {"servers": 1}),
    "parameter_server, 4+4 co-located": ("parameter_server", {"servers": "all"}),
    "all_to_all, 4 workers": ("all_to_all", {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="folder of the MNIST files")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="", help="run the topologies whose name contains this")
    parser.add_argument("--records", type=Path, help="folder for the records")
    parser.add_argument("settings", nargs="*", help="key=value, for every run")
    options = parser.parse_args()
    common = dict(setting.split("=", 1) for setting in options.settings)
    print(f"{'topology':34} seed  last three validations      best   images/s  sent MB  seconds")
    for name, (job, own) in TOPOLOGIES.items():
        if options.only not in name:
            continue
        for seed in range(options.seeds):
            settings = {"data": "mnist", "data_dir": options.data_dir, "seed": seed, **own, **common}
            result = run(job, settings, nodes=4)
            accuracies = [100 * report["accuracy"] for report in result.reports]
            record: dict[str, dict[str, float]] = json.loads(json.dumps(result.record))
            seconds = float(json.loads(json.dumps(result.record["run_s"])))
            last = "  ".join(f"{accuracy:.2f}" for accuracy in accuracies[-3:])
            totals = record["totals"]
            print(
                f"{name:34} {seed:4}  {last:26}  {max(accuracies):5.2f}  {totals['images'] / seconds:8,.0f}"
                f"  {totals['sent_nbytes'] / 1e6:7.0f}  {seconds:7.1f}",
                flush=True,
            )
            if options.records:
                options.records.mkdir(parents=True, exist_ok=True)
                path = options.records / f"{job}-{own.get('servers', '')}-{seed}.json"
                path.write_text(json.dumps(result.record, indent=1))


if __name__ == "__main__":
    main()
