"""Try the command line with bad values for every option: python scripts/fuzz_cli.py --cases 10000 --seed 0

Every case is a command that works, of which some values are replaced by bad ones: of another type, huge, negative, nan,
empty, markup, terminal escapes, names too long, what is not there, folders, devices, pipes, damaged JSON. It runs in
this process, as `rti` does. A finding is an exit code other than 0 and 2, an exception that escapes, a traceback, a raw
escape in what is printed, a file that is left behind with exit code 2, or more than 20 seconds. The cases depend on the
seed and on their number alone; --case NUMBER runs one again and shows what it prints. Exit code 1 for any finding.
"""

import argparse
import collections
import contextlib
import copy
import io
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported
ROOT = Path(__file__).parent.parent
SECONDS = 20
MEMORY = 8 * 2**30  # of addresses: what would fill the machine ends as an error

# fmt: off
NAMES = ("", " ", ".", "..", "/", "nowhere", "nowhere/deep/x.png", "a" * 300, "a/" * 3000, "~nouser", "~", "x" * 70_000)
SIGNS = ("[/x]", "[red]x", "\x1b[2J", "\x07", "\x9b31m", "\u202eevil", "é", "日本", "\udcff", "-", "--", "-x", "a=b")
WORDS = ("nan", "inf", "0", "-1", "1.5", "25%", "1e400%", "dense", ",", "1,,2", "9" * 5000, "None", "{}", "%s")
FILES = ("a.txt", "folder", "empty.json", "deep.json", "digits.json", "list.json", "picture.png", "cut.png", "mutant")
PLACES = ("/dev/null", "/dev/zero", "pipe", "/proc/self/environ", "hf:x/y", "a@nan", "scenes/adapter", "jit-b16")
WHOLE = ("-1", "0", "-" + "9" * 20, "9" * 20, str(2**63 - 1), str(2**64), "1e3", "1.5", "", "9" * 5000, "nan", *SIGNS)
REAL = ("nan", "inf", "-inf", "1e400", "-1", "", "x", "9" * 400, *SIGNS[:6])
JUNK = (None, True, -1, 0, 1.5, math.inf, "", "x", "\x1b[2J", [], {}, [[]], {"x": None}, 10**30, "9" * 400)
# fmt: on
TEXTS = (*NAMES, *SIGNS, *WORDS, *FILES, *PLACES)

# A cheap command each, and what makes it end before its work; "mutant" stands for a file or folder that is damaged.
JIT = ("--steps", "1")
PROBE = ("--steps", "2", "--prompts", "1", "--watched", "1", "-o", "out")
COMMANDS = {
    "sample": (("--model", "jit", "--labels", "1", *JIT), ("-o", "x.txt")),
    "regions": (("picture.png", "--size", "32", "--patch", "8", "-o", "r.png"), ("--budget", "0")),
    "info": (("jit",), ("--core", "9,4")),
    "bench": (("jit", "--passes", "1", "--warmup", "0", "--budget", "8", "--core", "1,3"), ("--budget", "0")),
    "study": (("study.json", "-o", "study", "--dry-run"), ("--kinds", "x")),
    "generate": (("jit", "--prompts", "classes", "--count", "2", "-o", "out", *JIT), ("--budget", "8")),
    "compare": (("run", "run", "--resamples", "10"), ()),
    "web": (("jit",), ("--port", "0")),
    "train": (("jit", "--data", "scenes", "--output", "out", "--dry-run"), ("--steps", "0")),
    "pretrain": (("scenes-jit", "--output", "out", "--steps", "1"), ("--batch", "0")),
    "eval scenes": (("jit", "--images", "6", *JIT), ("--budget", "8")),
    "eval loss": (("jit", "--data", "scenes", "--examples", "1"), ("--budget", "8")),
    "score geneval": (("run",), ("--detector", "nowhere")),
    "score clip": (("run", "--model", "nowhere"), ()),
    "score pick": (("run", "--model", "nowhere"), ()),
    "score imagereward": (("run", "--model", "nowhere"), ()),
    "score fid": (("run", "--features", "f.npz", "--reference", "f.npz"), ()),
    "score is": (("run", "--features", "f.npz", "--splits", "2"), ()),
    "probe redundancy": (("jit", *PROBE), ("--core", "9,4")),
    "probe groupings": (("jit", *PROBE), ("--core", "9,4")),
    "probe orders": (("jit", *PROBE), ("--cuts", "x")),
    "probe routing": (("jit", *PROBE), ()),
    "figure redundancy": (("probes",), ("-o", "x.txt")),
    "figure groupings": (("probes",), ("-o", "x.txt")),
    "figure orders": (("probes",), ("-o", "x.txt")),
    "figure routing": (("probes",), ("-o", "x.txt")),
    "figure gallery": (("jit", "1", *JIT), ("--budget", "8")),
    "figure overlay": (("jit", "1", *JIT), ("--budget", "8")),
    "figure methods": (("jit", "1", *JIT), ("-o", "x.txt")),
    "figure frontier": (("run",), ("-o", "x.txt")),
    "figure walks": ((), ("-o", "x.txt")),
}
ALWAYS = ("web", "pretrain")  # end before the work in every case: it would take too long, or not end


class TooLong(BaseException):
    """No exception that a command may catch."""


def prepare(folder: Path) -> None:
    """A folder with what the commands need; made by the commands themselves."""
    import numpy as np
    from PIL import Image

    os.chdir(folder)
    shutil.copytree(ROOT / "tests" / "data" / "jit-tiny", "jit")
    Path("folder").mkdir()
    Path("a.txt").write_text("a red star\n")
    Path("empty.json").write_text("")
    Path("deep.json").write_text("[" * 50_000)
    Path("digits.json").write_text('{"model": ' + "9" * 5000 + "}")
    Path("list.json").write_text("[1]")
    Path("pictures").mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (40, 48, 3), dtype=np.uint8)
    for name in ("picture.png", "pictures/one.png"):
        Image.fromarray(pixels).save(name)
    Path("cut.png").write_bytes(Path("picture.png").read_bytes()[:300])
    np.savez("f.npz", features=np.random.default_rng(1).random((6, 4)))
    os.mkfifo("pipe")
    rows = [{"name": "ours", "title": "ours", "images": {"8": 6}}, {"name": "other", "title": "other", "seeds": [0, 1]}]
    Path("study.json").write_text(json.dumps({"model": "jit", "budgets": [8, 16], "train": {"steps": 1}, "rows": rows}))
    probe = ("--prompts", "1", "--steps", "2", "--watched", "2", "-o", "probes")
    for command in (
        ("generate", "scenes", "--prompts", "scenes", "--count", "6", "--steps", "1", "-o", "run"),
        ("score", "geneval", "run"),
        *(("probe", name, "jit", *probe) for name in ("redundancy", "groupings", "orders")),
        ("probe", "routing", "scenes-jit", "--budget", "8,64", *probe),
        ("figure", "orders", "probes"),  # matplotlib's first figure takes seconds
    ):
        outcome = run(list(command), 600)
        if outcome.code != 0:
            raise SystemExit(f"cannot prepare: rti {' '.join(command)}: {outcome.printed}")
    for path in Path("probes").glob("orders.[ps]*g"):
        path.unlink()


Outcome = collections.namedtuple("Outcome", "code printed escaped seconds")


def run(arguments: list[str], longest: int = 3 * SECONDS) -> Outcome:
    """`rti ARGUMENTS` in this process: its exit code, what it printed, what escaped it, and how long it took.

    On a busy machine a command may wait: it ends after so many seconds by the clock, and its own are counted.
    """
    from rti.cli import main

    def stop(*_: object) -> None:
        raise TooLong

    printed, code, escaped, started = io.StringIO(), None, None, time.process_time()
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(longest)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), warnings.catch_warnings():
            main(arguments)
    except SystemExit as end:
        code = end.code
    except TooLong:
        escaped = f"not done after {longest} seconds"
    except BaseException as error:
        escaped = f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return Outcome(code, printed.getvalue(), escaped, time.process_time() - started)


def make_case(seed: int, number: int) -> tuple[str, list[str]]:
    """The command of a case, and its arguments; a damaged file of its own is written where it names one."""
    rng = random.Random(f"{seed} {number}")
    name = rng.choice(list(COMMANDS))
    base, ending = COMMANDS[name]
    arguments = [*base]
    for option, kind in rng.sample(OPTIONS[name], min(len(OPTIONS[name]), rng.choice((1, 1, 1, 2, 3)))):
        value = rng.choice({"int": WHOLE, "integer": WHOLE, "float": REAL}.get(kind, TEXTS))
        if option is None:  # in the place of an argument, or beside it
            arguments = [value, *arguments[rng.random() < 0.8 :]]
        else:
            arguments += [option] if kind.startswith("bool") else [option, value]
    if rng.random() < 0.05:
        arguments += [rng.choice(("--bogus", "--steps", "--output", *SIGNS))]
    if rng.random() < 0.05:
        del arguments[rng.randrange(len(arguments))]
    if name in ALWAYS or rng.random() < 0.7:
        arguments += ending
    if name.startswith(("figure", "study", "compare", "score")) and rng.random() < 0.4:
        place = {"study": "study.json", "compare": "run", "score": "run"}.get(name.split()[0], "probes")
        arguments = ["mutant" if one in (place, "probes/redundancy.json") else one for one in arguments]
    if "mutant" in arguments:
        make_mutant(name, rng)
    return name, [*name.split(), *arguments]


def make_mutant(name: str, rng: random.Random) -> None:
    """What a command reads, with one value replaced or gone."""
    if name.startswith(("compare", "score")):
        shutil.copytree("run", "mutant")
        file = rng.choice(("manifest.json", "prompts.jsonl", "scores/geneval.json", "timing.jsonl"))
        path, lines = Path("mutant", file), file.endswith("jsonl")
        texts = path.read_text().splitlines() if lines else [path.read_text()]
        texts[0] = json.dumps(mutated(json.loads(texts[0]), rng))
        path.write_text("\n".join(texts))
    else:
        path = "study.json" if name == "study" else f"probes/{name.partition(' ')[2]}.json"
        values = json.loads(Path(path if Path(path).is_file() else "study.json").read_text())
        Path("mutant").write_text(json.dumps(mutated(values, rng)))


def mutated(values: object, rng: random.Random) -> object:
    values = copy.deepcopy(values)
    place = values
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        if not keys:
            return values
        key = rng.choice(list(keys))
        if isinstance(place[key], (dict, list)) and place[key] and rng.random() < 0.7:
            place = place[key]
        elif rng.random() < 0.3:
            del place[key]
            return values
        else:
            place[key] = rng.choice(JUNK)
            return values


def problem(outcome: Outcome, left: set[str]) -> str | None:
    """What is wrong with an outcome, in a few words."""
    last = (outcome.printed.strip().splitlines() or [""])[-1]
    if outcome.escaped is not None:
        return outcome.escaped
    if outcome.code not in (0, 2):
        return f"exit code {outcome.code}: {last}"
    if "Traceback (most recent call last)" in outcome.printed:
        return f"a traceback: {last}"
    if set(outcome.printed) & {"\x1b", "\x07", "\x9b", "\u202e"}:
        return "a raw escape is printed"
    if outcome.seconds > SECONDS:
        return f"it took {outcome.seconds:.0f} seconds"
    if outcome.code == 2 and left:
        return f"exit code 2, but it left {sorted(left)[0]} behind: {last}"
    return None


def files() -> set[str]:
    return {str(path) for path in Path().rglob("*")}


def options_of() -> dict[str, list[tuple[str | None, str]]]:
    """Every option of every command and its type, from the command line itself; an argument has no name."""
    import typer

    from rti.cli import app

    def walk(command: object, name: str) -> dict[str, object]:
        if not hasattr(command, "commands"):
            return {name: command}
        return {
            key: one for child, some in command.commands.items() for key, one in walk(some, f"{name} {child}").items()
        }

    def kind(option: object) -> str:
        described = getattr(option, "type_descriptor", None)  # of newer releases of typer
        return option.type.name if described is None else described.annotation.__name__

    return {
        name.strip(): [
            (option.opts[-1] if option.opts[0].startswith("-") else None, kind(option))
            for option in command.params
            if not {"--help", "--compile"} & {*option.opts}  # to compile takes a minute, as its help says
        ]
        for name, command in walk(typer.main.get_command(app), "").items()
    }


OPTIONS = {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="Only this one, with what it prints.")
    chosen = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    OPTIONS.update(options_of())
    unknown = set(OPTIONS) ^ set(COMMANDS)
    if unknown:
        raise SystemExit(f"a command to try is missing in COMMANDS, or none any more: {', '.join(sorted(unknown))}")
    folder, here = Path(tempfile.mkdtemp(prefix="rti-fuzz-")), os.getcwd()
    tried, found, seconds = collections.Counter(), collections.Counter(), collections.Counter()
    try:
        prepare(folder)
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * 4096 + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        before, codes = files(), collections.Counter()
        for number in range(chosen.cases) if chosen.case is None else [chosen.case]:
            name, arguments = make_case(chosen.seed, number)
            made = files()
            outcome = run(arguments)
            left = files() - made
            wrong = problem(outcome, left)
            tried[name] += 1
            codes[outcome.code] += 1
            seconds[name] += outcome.seconds
            if wrong is not None:
                found[name] += 1
                shown = " ".join(repr(one) if len(one) < 80 else f"{one[:20]!r}... ({len(one)})" for one in arguments)
                print(f"case {number}: rti {shown}\n    {ascii(wrong)[1:-1][:300]}", flush=True)
            if chosen.case is not None:
                print(ascii(outcome.printed).replace("\\n", "\n"))
            for path in sorted(files() - before, reverse=True):
                shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
            if before - files():
                raise SystemExit(f"case {number} removed {sorted(before - files())}")
    finally:
        os.chdir(here)
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{'command':20} {'tried':>6} {'found':>6} {'seconds':>8}")
    for name in COMMANDS:
        print(f"{name:20} {tried[name]:6} {found[name]:6} {seconds[name]:8.1f}")
    print(f"{'all':20} {tried.total():6} {found.total():6} {seconds.total():8.1f}   exit codes: {dict(codes)}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
