"""For `accelerate launch -m rti.train PRESET --output RUN --data SOURCE ...`: the command `rti train`."""

import sys

from rti.cli import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
