"""What both fuzzers share: seeded cases in turn, a limit of time and memory for each, and a table of what was found.

A case may give a result or an InputError of one line. Anything else is a finding, printed with how to see it again.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from rti.errors import InputError

SECONDS = 10.0  # for one case
GIGABYTES = 1.5  # that one case may add to the most that was ever held
Target = Callable[[random.Random], object]


class TooSlow(BaseException):
    """Not an Exception: a reader that catches those must not hide it."""


def main(targets: dict[str, Target], description: str | None) -> None:
    """Run as the arguments say, and leave with 1 if anything was found."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="only this one, with its traceback")
    parser.add_argument("--only", help="only targets whose name contains this")
    options = parser.parse_args()
    chosen = {name: target for name, target in targets.items() if (options.only or "") in name}
    signal.signal(signal.SIGALRM, _too_slow)
    tried, seconds, found = Counter(), Counter(), {}
    for case in range(options.cases) if options.case is None else [options.case]:
        name = list(chosen)[case % len(chosen)]
        tried[name] += 1
        began = time.perf_counter()
        finding = run_case(chosen[name], random.Random(f"{options.seed} {case}"), options.case is not None)
        seconds[name] += time.perf_counter() - began
        if finding is not None:
            key = (name, finding.split(": ")[0])  # one line for what fails at one place
            found.setdefault(key, []).append(case)
            if len(found[key]) == 1:
                print(f"{name}: {finding} (--seed {options.seed} --case {case})", flush=True)
    print(f"\n{sum(tried.values())} cases in {sum(seconds.values()):.0f} s")
    for name, count in tried.items():
        findings = sum(len(cases) for (where, _), cases in found.items() if where == name)
        print(f"{name:24s} {count:6d} tried in {seconds[name]:4.0f} s, {findings} findings")
    sys.exit(1 if found else 0)


def run_case(target: Target, rng: random.Random, show: bool = False) -> str | None:
    """What was wrong with a case, or None."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target(rng)
    except InputError as error:
        if "\n" in str(error):
            return f"an InputError of several lines at {_place(error)}"
    except TooSlow as error:
        return f"more than {SECONDS:.0f} s at {_place(error)}"
    except BaseException as error:
        if show:
            traceback.print_exc()
        return f"{type(error).__name__} at {_place(error)}: {' '.join(str(error).split())[:100]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most) / 2**20
    return f"{GIGABYTES} GB more held" if more > GIGABYTES else None


def _too_slow(*_: object) -> None:
    raise TooSlow


def _place(error: BaseException) -> str:
    """The last line of ours that the error came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/rti/" in frame.filename]
    return f"{frames[-1].filename.split('/rti/')[-1]}:{frames[-1].lineno}" if frames else "no line of rti"
