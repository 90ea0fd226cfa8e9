"""By how much the losses of one adapter are below those of another, on the same examples, times and noise.

rti eval loss scenes --adapter ONE --budget 16,64 --data scenes --output one.json    # and for ANOTHER
python scripts/paired_losses.py one.json another.json
"""

import argparse
import json
from pathlib import Path

import numpy as np

from rti.cli.output import show_table
from rti.lab.intervals import mean_interval

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    options = parser.parse_args()
    first, second = (json.loads(path.read_text()) for path in (options.first, options.second))
    if first["times"] != second["times"]:
        parser.error(f"{options.first} and {options.second} are not of the same examples")
    rows = []
    for budget in (budget for budget in first["losses"] if budget in second["losses"]):
        one, other = (np.array(some["losses"][budget]) for some in (first, second))
        interval = mean_interval(one - other)  # none where they are the same, as of dense
        between = "the same" if interval is None else "{:+.4f} to {:+.4f}".format(*interval)
        rows.append([budget, f"{one.mean():.4f}", f"{other.mean():.4f}", between])
    title = f"{options.first.stem} minus {options.second.stem}, {len(first['times'])} examples, 95 % interval"
    show_table(title, ("budget", options.first.stem, options.second.stem, "difference"), rows)
