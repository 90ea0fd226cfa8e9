"""For `python -m rti` and `accelerate launch -m rti COMMAND ...`: the command `rti`."""

from rti.cli import main

if __name__ == "__main__":
    main()
