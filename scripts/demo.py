"""The demo: the regions of a photograph, drawn beside the uniform grid."""

import argparse
import importlib.util
import sys
from pathlib import Path

from rti.cli import main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", default="demo.png")
    output = parser.parse_args().output
    package = importlib.util.find_spec("skimage")
    if package is None:
        sys.exit("the demo's photograph comes with scikit-image: pip install --no-deps scikit-image")
    photograph = Path(package.origin).parent / "data" / "coffee.png"
    main(["regions", str(photograph), "--budget", "256", "--output", output])
