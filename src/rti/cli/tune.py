"""`rti tune`: the fastest way to good pictures on this machine, as presets."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rti.cli.options import GUIDANCE, MODEL, Runtime, budget_option, command, number_option, seed_option
from rti.cli.output import say, show_table
from rti.cli.score import MEASURES
from rti.dials import FILE, Dials
from rti.errors import InputError, check_choice, check_finite

if TYPE_CHECKING:
    from rti.lab.pictures.folder import Entry
    from rti.lab.tuning.search import Trial
    from rti.lab.tuning.tuning import Tuning
    from rti.pipeline import Pipeline

BUDGETS, TEXT_BUDGETS = "dense,0.5,0.25,0.125,0.0625", "full,0.5,0.25"
JUDGES = ("psnr", "ssim", "geneval", "clip", "pick", "imagereward")
SEARCHES = 6  # for what is good enough
FASTER = {"careful": 3, "balanced": 6, "fast": 12, "draft": 24}  # than the model's own way, where nothing is asked
OWN_PROMPTS = 500


@command
def tune(
    runtime: Runtime,
    model: str = MODEL,
    prompts: str = typer.Option(
        None, help="What you draw: a text file with a prompt a line, or as of rti generate. Default: a varied list."
    ),
    seconds: float = typer.Option(None, help="The best pictures in so many seconds each."),
    db: float = typer.Option(None, help="Or the fastest that are on average so near to careful ones, PSNR in dB."),
    loss: float = typer.Option(None, help="Or the fastest that lose at most so many points of --by, a scorer."),
    by: str = typer.Option("psnr", help=f"What counts: {', '.join(JUDGES)}; psnr and ssim to careful pictures."),
    pictures: int = number_option(48, help="That the last settings are judged by; the first ones by few of them."),
    most: int = number_option(81, help="So many settings are tried for each goal; of more, some of all."),
    budget: str = budget_option(BUDGETS, help="Regions to try."),
    text_budgets: str = typer.Option(TEXT_BUDGETS, help="Text tokens to try, where the adapter can."),
    guidance: float = GUIDANCE,
    batch: int = number_option(1, help="Pictures at a time, as you will draw them: what is timed."),
    seed: int = seed_option(0, help="Of the pictures' noise."),
    output: Path = typer.Option(
        None, "--output", "-o", help="Folder of the run; the same command goes on there. Default: tuned/MODEL."
    ),
    plot: bool = typer.Option(True, help="Draw frontier.png there."),
) -> dict[str, Any]:
    """Turn all dials together and find the best pictures for the time: solver, steps, regions, text, guidance.

    Each setting is timed on this machine, and judged by how near its pictures
    are to careful ones of the same noise (dense, 50 steps of second order), or
    by a scorer. Many settings are tried on few pictures, the better third of
    them on three times as many, and so on. What is found are presets, in the
    adapter's folder where that is yours, else in --output:

    rti tune scenes --seconds 1
    rti sample "a red star" --presets tuned/scenes/presets.json --preset tuned
    """
    from rti.lab.tuning.search import frontier
    from rti.lab.tuning.tuning import Tuning

    if sum(goal is not None for goal in (seconds, db, loss)) > 1:
        raise InputError("several of --seconds, --db and --loss given; allowed: one of them")
    for name, value in (("seconds", seconds), ("db", db), ("loss", loss)):
        if value is not None:
            check_finite(name, value, above=0)
    check_choice("by", by, JUDGES)
    if db is not None and by != "psnr":
        raise InputError(f"--db given with --by {by}; allowed: psnr, or --loss in the place of --db")
    if loss is not None and by in ("psnr", "ssim"):
        raise InputError(f"--loss given with --by {by}; allowed: {', '.join(JUDGES[2:])}")
    pipe = runtime.load(model)
    entries = _entries(pipe, prompts, by, seed)
    output = output or Path("tuned") / (Path(model).name or "model")
    how = dict(guidance=guidance, batch=batch, seed=seed, compiled=runtime.compile)
    ranges = _ranges(pipe, budget, text_budgets)
    tuning = Tuning(pipe, entries, ranges, output, pictures, by, _scorer(by, runtime.device), **how)
    tuning.begin()
    own = tuning.costs.seconds(Dials())
    if seconds is not None:
        found = {"tuned": tuning.best(seconds, most)}
    elif db is not None or loss is not None:
        found = {"tuned": _good_enough(tuning, own, most, db, loss)}
    else:
        found = _usual_goals(tuning, own, most)
    named = [Path(name) for name in (runtime.adapter, model) if name is not None and os.path.isdir(name)]
    yours = [pipe.adapter_folder] if pipe.adapter_folder in named else []
    presets = tuning.write(found, [output, *yours])

    tried = [trial for trial in tuning.trials.values() if len(trial.scores) >= pictures and trial.timed]
    best = frontier(tried, pictures)
    rows = [_row(trial.row(pictures), own, [name for name, one in found.items() if one is trial]) for trial in best]
    rows += [_row(one.row(pictures), own, [name]) for name, one in found.items() if one not in best]
    title = (
        f"rti tune {model}: {len(tuning.trials)} settings; {pictures} pictures a row; {own:.3g} s its own way, dense"
    )
    show_table(title, ("preset", "seconds", "faster", by, "95 %", "dials"), rows)
    if plot and find_spec("matplotlib") is None:
        say("no frontier.png: a figure needs matplotlib, pip install 'region-tokens[plots]'")
    elif plot:
        from rti.lab.plots import tuning_figure

        say(tuning_figure([trial.row(pictures) for trial in tried], found, by, output / "frontier.png"))
    say((yours or [output])[0] / FILE)
    shown = {name: {"dials": one.dials.given(), "seconds": one.seconds} | one.measured for name, one in presets.items()}
    return {"model": model, "own_seconds": own, "presets": shown, "frontier": [trial.row(pictures) for trial in best]}


def _usual_goals(tuning: Tuning, own: float, most: int) -> dict[str, Trial]:
    """The best at several times the model's own speed."""
    found = {}
    for name, faster in FASTER.items():
        if own / faster < tuning.costs.least():
            say(f"{name}: nothing is {faster} times as fast as the model's own way; left out")
        else:
            found[name] = tuning.best(own / faster, most)
    if not found:
        raise InputError(
            "nothing that can be turned makes this model three times as fast as its own way; give --seconds"
        )
    return found


def _good_enough(tuning: Tuning, own: float, most: int, db: float | None, loss: float | None) -> Trial:
    """The fastest whose pictures are so good: half the seconds as long as they are, then between the last two."""
    from rti.lab.pictures.scorers.results import METRICS
    from rti.lab.tuning.tuning import CAREFUL

    least = db
    if loss is not None:
        careful = tuning.trial(CAREFUL)
        tuning.score(careful, tuning.pictures)
        least = careful.score(tuning.pictures) - loss / METRICS[tuning.by].scale
    best, good, bad = None, own, None
    for _ in range(SEARCHES):
        limit = good / 2 if bad is None else (good * bad) ** 0.5
        if limit < tuning.costs.least():
            bad = tuning.costs.least()
            continue
        trial = tuning.best(limit, most)
        if trial.score(tuning.pictures) >= least:
            best, good = trial, min(limit, trial.seconds)
        else:
            bad = limit
    if best is None:
        raise InputError(f"nothing that is faster than the model's own way is as good as that: {tuning.by} {least:.4g}")
    return best


def _row(row: dict[str, Any], own: float, names: list[str]) -> list[Any]:
    between = "{:.2f} to {:.2f}".format(*row["interval"]) if row["interval"] else ""
    dials = ", ".join(f"{key.removeprefix('num_inference_')} {value}" for key, value in row["dials"].items())
    faster, score = f"{own / row['seconds']:.1f}x", f"{row['score']:.2f}"
    return [", ".join(names), f"{row['seconds']:.3g}", faster, score, between, dials]


def _entries(pipe: Pipeline, prompts: str | None, by: str, seed: int) -> tuple[Entry, ...]:
    """What is drawn; what the scorer cannot judge is refused before anything is."""
    from rti.lab.pictures.folder import Entry
    from rti.lab.pictures.prompts import open_prompts, scene_prompts
    from rti.text.prompts import spread_labels, template_prompts, word_prompts
    from rti.text.words import WordEncoder

    labels = pipe.backbone.conditioned_on == "labels"
    if labels and by in ("clip", "pick", "imagereward"):
        raise InputError(f"--by {by} compares with texts, and this model draws from labels; allowed: psnr, ssim")
    if by == "geneval" and prompts not in (None, "scenes"):
        raise InputError(f"--by geneval given with --prompts {prompts}; allowed: scenes, the world of its detector")
    if prompts == "scenes" or by == "geneval":
        return scene_prompts(OWN_PROMPTS, seed, "all", pipe.backbone.conditioned_on).prompts
    if prompts is not None:
        return open_prompts(prompts, classes=getattr(pipe.backbone.config, "num_classes", None), seed=seed).prompts
    if labels:
        some = spread_labels(OWN_PROMPTS, pipe.backbone.config.num_classes)
    else:
        some = word_prompts(OWN_PROMPTS) if isinstance(pipe.text_encoder, WordEncoder) else template_prompts()
    return tuple(Entry(index, one) for index, one in enumerate(some))


def _ranges(pipe: Pipeline, budgets: str, texts: str) -> Any:
    from rti.lab.tuning.costs import Ranges
    from rti.method.budgets import parse_budget, parse_budgets, resolve_budget

    patches = pipe.backbone.patches
    wanted = [None if one is None else resolve_budget(one, patches) for one in parse_budgets(budgets)]
    text = [None if one == "full" else parse_budget(one) for one in texts.split(",")]
    if pipe.elastic is None:
        if budgets != BUDGETS:
            raise InputError(f"--budget {budgets} given, and this model has no adapter; give --adapter FOLDER")
        wanted = [None]
    if pipe.elastic is None or not pipe.elastic.config.text_regions:
        if texts != TEXT_BUDGETS:
            raise InputError(f"--text-budgets {texts} given, and this model has no adapter with text regions")
        text = [None]
    intervals = (None, (0.0, 0.8), (0.0, 0.6), (0.2, 1.0))
    return Ranges(("multistep", "euler"), (1.0, 2.0), tuple(dict.fromkeys(wanted)), tuple(text), intervals)


def _scorer(by: str, device: str) -> Any:
    from rti.lab.pictures.scorers import clip, geneval, imagereward
    from rti.precision import place

    if by == "geneval":
        return geneval.GenEvalScorer(geneval.SceneDetector())
    kinds = {"clip": clip.ClipScorer, "pick": clip.PickScorer, "imagereward": imagereward.ImageReward}
    if by not in kinds:
        return None
    names = [option.default for option in MEASURES[by][1].values()]
    return kinds[by].load(*names, device=place(device)[0])
