"""Plot accuracy over time from records of runs.

    ako run ako epochs=20 --nodes 4 --json record.json
    python docs/images/make_curves.py record.json [another.json ...] docs/images/ako-digits.svg

Needs the extra ``[plots]``. A curve per record: test accuracy, and accuracy on held-out training images, dashed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from matplotlib.figure import Figure


def main() -> None:
    """Read the records, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+", help="files that ako run --json has written")
    parser.add_argument("picture", type=Path, help="file to write: .svg or .png")
    options = parser.parse_args()
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    for path in options.records:
        record = json.loads(path.read_text())
        reports = [report for report in record["reports"] if "accuracy" in report]
        times_s = [report["time_s"] for report in reports]
        label = f"{record['name']}, {len(record['nodes'])} nodes"
        (line,) = axes.plot(times_s, [100 * report["accuracy"] for report in reports], marker=".", label=label)
        held_out = [report["validation_accuracy"] for report in reports]
        if None not in held_out:
            values, color = [100 * value for value in held_out], line.get_color()
            axes.plot(times_s, values, "--", linewidth=0.8, color=color, label="images held out of training")
    axes.set_xlabel("time, s")
    axes.set_ylabel("accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    # Without a date and with a fixed salt, the same records give the same bytes.
    figure.savefig(options.picture, metadata={"Date": None} if options.picture.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
