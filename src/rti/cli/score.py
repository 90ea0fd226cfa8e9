"""`rti score`: how good the pictures of a folder are, by each of the field's measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rti.cli.options import DEVICE_HELP, command, number_option
from rti.cli.output import say, show_table

if TYPE_CHECKING:
    from rti.lab.pictures.scorers.results import Score

scores = typer.Typer(
    no_args_is_help=True,
    help="Score the pictures of rti generate. For example: rti score clip runs/dense/parti. "
    "Models are loaded by name from the hub, or from a folder.",
)
MODEL, WORDS = "By hub name or folder.", "Its tokenizer, by hub name or folder."
DETECTOR = (
    "Mask2Former, by hub name or folder, or 'scenes', the exact detector of the scenes world. "
    "Default: facebook/mask2former-swin-small-coco-instance; scenes for --prompts scenes."
)
FEATURES = {
    "features": typer.Option(None, help="Features (for is, logits) of any network, .npz or .npy, (n, D)."),
    "save_features": typer.Option(None, help="Keep the features in this .npz file, for another time."),
}
MEASURES: dict[str, tuple[str, dict[str, Any]]] = {  # what a measure is, and what it is told beside the folder
    "geneval": (
        """GenEval: the share of pictures that show what was asked for, by task; overall is the mean of the tasks.

        The detector's weights are not those of the original, whose toolbox cannot be
        installed any more: compare scores of this command with each other only.
        """,
        {
            "detector": typer.Option(None, help=DETECTOR),
            "clip": typer.Option("openai/clip-vit-large-patch14", help="CLIP that names the colours."),
        },
    ),
    "clip": (
        "CLIPScore: 100 x the cosine between picture and prompt, at least 0.",
        {"model": typer.Option("openai/clip-vit-large-patch14", help=MODEL)},
    ),
    "pick": (
        "PickScore: a CLIP trained on what people pick.",
        {
            "model": typer.Option("yuvalkirstain/PickScore_v1", help=MODEL),
            "processor": typer.Option("laion/CLIP-ViT-H-14-laion2B-s32B-b79K", help=WORDS),
        },
    ),
    "imagereward": (
        "ImageReward: what people prefer, 0 on average over the pictures its authors used.",
        {
            "model": typer.Option("THUDM/ImageReward", help="Hub name, or folder with its .pt and med_config.json."),
            "tokenizer": typer.Option("bert-base-uncased", help=WORDS),
        },
    ),
    "fid": (
        "FID: the Fréchet distance between the features of these pictures and of real ones.",
        {"reference": typer.Option(..., help="Real pictures: a folder, or a file with mu and sigma or features.")}
        | FEATURES,
    ),
    "is": (
        "Inception Score: how sure a classifier is of each picture, and how many classes they cover.",
        {"splits": number_option(10, help="Splits of the pictures; the score is their mean.")} | FEATURES,
    ),
}


@dataclass(frozen=True)
class Scoring:
    """What every measure is told."""

    folder: Path = typer.Argument(help="A folder of rti generate; for fid and is also one of any pictures.")
    batch: int = number_option(16, help="Pictures at a time.")
    device: str = typer.Option("auto", help=DEVICE_HELP)

    def finish(self, score: Score) -> dict:
        """Write scores/METRIC.json in the folder, show the table."""
        from rti.lab.pictures.scorers.results import METRICS

        path = score.write(self.folder)
        summary, scale = score.summary, METRICS[score.metric].scale
        digits = 1 if scale == 100 else 3
        means = {"overall": summary["score"]} | summary.get("groups", {})
        intervals = {"overall": summary.get("interval")} | summary.get("group_intervals", {})
        rows = [
            [name, f"{scale * mean:.{digits}f}", " to ".join(f"{scale * s:.{digits}f}" for s in intervals[name] or ())]
            for name, mean in means.items()
        ]
        by = ", ".join(f"{name} {value}" for name, value in score.scorer.items())
        title = f"{score.metric} of {self.folder}: {summary['pictures']} pictures{', %' if scale == 100 else ''}\n{by}"
        show_table(title, ("", "score", "95 % interval"), rows)
        say(path)
        about = {"folder": str(self.folder), "metric": score.metric, "output": str(path)}
        return {**about, **score.scorer, **summary}


def _command(metric: str, text: str, options: dict[str, Any]) -> Callable[..., dict]:
    def score(scoring: Scoring, options: Any) -> dict:
        from rti.lab.pictures.scorers import clip, fid, geneval, imagereward
        from rti.lab.pictures.scorers.results import score_texts
        from rti.precision import place

        measure = {
            "geneval": geneval.score_geneval,
            "clip": partial(score_texts, "clip", clip.ClipScorer.load),
            "pick": partial(score_texts, "pick", clip.PickScorer.load),
            "imagereward": partial(score_texts, "imagereward", imagereward.ImageReward.load),
            "fid": partial(fid.score_features, "fid"),
            "is": partial(fid.score_features, "is"),
        }[metric]
        return scoring.finish(measure(scoring.folder, scoring.batch, place(scoring.device)[0], **vars(options)))

    typed = [(name, int if isinstance(option.default, int) else str, option) for name, option in options.items()]
    score.__annotations__["options"] = make_dataclass("Options", typed, frozen=True)
    score.__doc__ = text
    return score


@scores.command()
@command
def fidelity(
    reference: Path = typer.Argument(help="The pictures to be near to, such as dense ones: a folder of rti generate."),
    folder: Path = typer.Argument(help="Those of the same prompts and seeds, drawn in another way."),
    batch: int = number_option(16, help="Pictures at a time."),
    device: str = typer.Option("auto", help=DEVICE_HELP),
) -> dict[str, Any]:
    """How near pictures are to those of the same noise drawn with care: PSNR and SSIM, LPIPS where it is installed.

    It tells settings apart where all pictures are right: fewer steps, fewer regions, another solver.
    For example: rti score fidelity runs/dense runs/r64
    """
    from rti.lab.pictures.scorers.fidelity import score_fidelity
    from rti.lab.pictures.scorers.results import METRICS
    from rti.precision import place

    rows, values = [], {"reference": str(reference), "folder": str(folder)}
    for score in score_fidelity(reference, folder, batch, place(device)[0]):
        score.write(folder)
        name, digits = METRICS[score.metric].name, METRICS[score.metric].digits
        between = " to ".join(f"{side:.{digits}f}" for side in score.summary["interval"] or ())
        rows.append([name, f"{score.summary['score']:.{digits}f}", between])
        values[score.metric] = score.summary
    title = f"{folder} against {reference}: {score.summary['pictures']} pictures"
    show_table(title, ("", "mean", "95 % interval"), rows)
    say(folder / "scores")
    return values


for _metric, _row in MEASURES.items():
    scores.command(_metric)(command(_command(_metric, *_row)))
