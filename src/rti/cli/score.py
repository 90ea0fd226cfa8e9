"""`rti score`: how good the pictures of a folder are, by each of the field's measures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rti.cli.models import DEVICE_HELP
from rti.cli.options import command, number_option
from rti.cli.output import say, show_table
from rti.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from rti.lab.pictures.scorers.results import Score

scores = typer.Typer(
    no_args_is_help=True,
    help="Score the pictures of rti generate. For example: rti score clip runs/dense/parti. "
    "Models are loaded by name from the hub, or from a folder.",
)
CLIP = "openai/clip-vit-large-patch14"
MASK2FORMER = "facebook/mask2former-swin-small-coco-instance"


@dataclass(frozen=True)
class Scoring:
    """What every measure is told."""

    folder: Path = typer.Argument(
        help="A folder of rti generate; for geneval also one in GenEval's own layout, for fid and is of any pictures."
    )
    output: Path = typer.Option(
        None, "--output", "-o", help="File for the results. Default: scores/METRIC.json in the folder."
    )
    batch: int = number_option(16, help="Pictures at a time.")
    device: str = typer.Option("auto", help=DEVICE_HELP)

    def check(self) -> None:
        """Refuse, before the work, to write over what is no result."""
        from rti.lab.pictures.scorers.results import check_output

        if self.output is not None:
            check_output(self.output)

    def place(self) -> str:
        """Where to compute; refuse a device that is not there."""
        import torch

        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise InputError(f"device {self.device!r} is not usable here: {str(error).splitlines()[0]}") from None
        return self.device

    def by_prompts(self, metric: str, kind: Any, **models: str) -> dict:
        """A measure of each picture beside its prompt; the scorer is loaded when the prompts are known to be texts."""
        from rti.lab.pictures.folder import PictureFolder
        from rti.lab.pictures.scorers.results import prompts_of, score_folder

        self.check()
        pictures = PictureFolder.open(self.folder)
        prompts_of(pictures.entries)
        scorer = kind.load(*models.values(), device=self.place())
        return self.finish(score_folder(pictures, metric, scorer, models, self.batch))

    def of_all(self, metric: str, scorer: dict[str, Any], values: dict[str, Any]) -> dict:
        """A score of all pictures together; of a folder that is ours it remembers which pictures they were."""
        from rti.lab.pictures.folder import MANIFEST, PictureFolder
        from rti.lab.pictures.scorers.results import Score

        digest = PictureFolder.open(self.folder).digest if (self.folder / MANIFEST).is_file() else None
        return self.finish(Score(metric, scorer, values, [], digest))

    def finish(self, score: Score) -> dict:
        """Write the file, show the table."""
        from rti.lab.pictures.scorers.results import METRICS, score_path

        path = score.write(self.output or score_path(self.folder, score.metric))
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


@scores.command()
@command
def geneval(
    scoring: Scoring,
    detector: str = typer.Option(
        None,
        help="Mask2Former, by hub name or folder, or 'scenes', the exact detector of the scenes world. "
        f"Default: {MASK2FORMER}; scenes for --prompts scenes.",
    ),
    clip: str = typer.Option(CLIP, help="CLIP that names the colours."),
) -> dict:
    """GenEval: the share of pictures that show what was asked for, by task; overall is the mean of the tasks.

    The detector's weights are not those of the original, whose toolbox cannot be
    installed any more: compare scores of this command with each other only.
    """
    from rti.lab.pictures.folder import PictureFolder
    from rti.lab.pictures.scorers.detector import GenEvalDetector
    from rti.lab.pictures.scorers.geneval import GenEvalScorer, SceneDetector
    from rti.lab.pictures.scorers.results import score_folder

    scoring.check()
    pictures = PictureFolder.open(scoring.folder)
    source = ((pictures.manifest or {}).get("prompts") or {}).get("source")
    exact = detector == "scenes" or (detector is None and source == "scenes")
    GenEvalScorer(SceneDetector if exact else GenEvalDetector).check(pictures.entries)  # before a model is loaded
    models = {"detector": "scenes"} if exact else {"detector": detector or MASK2FORMER, "clip": clip}
    found = SceneDetector() if exact else GenEvalDetector.load(*models.values(), scoring.place())
    score = score_folder(pictures, "geneval", GenEvalScorer(found), models, scoring.batch, by_group=True)
    return scoring.finish(score)


@scores.command()
@command
def clip(scoring: Scoring, model: str = typer.Option(CLIP, help="CLIP, by hub name or folder.")) -> dict:
    """CLIPScore: 100 x the cosine between picture and prompt, at least 0."""
    from rti.lab.pictures.scorers.clip import ClipScorer

    return scoring.by_prompts("clip", ClipScorer, model=model)


@scores.command()
@command
def pick(
    scoring: Scoring,
    model: str = typer.Option("yuvalkirstain/PickScore_v1", help="By hub name or folder."),
    processor: str = typer.Option("laion/CLIP-ViT-H-14-laion2B-s32B-b79K", help="Its tokenizer."),
) -> dict:
    """PickScore: a CLIP trained on what people pick."""
    from rti.lab.pictures.scorers.clip import PickScorer

    return scoring.by_prompts("pick", PickScorer, model=model, processor=processor)


@scores.command()
@command
def imagereward(
    scoring: Scoring,
    model: str = typer.Option("THUDM/ImageReward", help="Hub name or folder with ImageReward.pt and med_config.json."),
    tokenizer: str = typer.Option("bert-base-uncased", help="By hub name or folder."),
) -> dict:
    """ImageReward: what people prefer, 0 on average over the pictures its authors used."""
    from rti.lab.pictures.scorers.imagereward import ImageRewardScorer

    return scoring.by_prompts("imagereward", ImageRewardScorer, model=model, tokenizer=tokenizer)


@dataclass(frozen=True)
class Features:
    """Where FID and IS get the features or logits of the pictures from."""

    features: Path = typer.Option(
        None, help="Features (for is, logits) of any network: .npz, .npy, .safetensors or .pt, (n, D)."
    )
    save_features: Path = typer.Option(None, help="Keep the features in this .npz file, for another time.")

    def of(self, scoring: Scoring, logits: bool) -> tuple[np.ndarray, str]:
        """(n, D), and what made them."""
        from rti.lab.pictures.scorers.fid import extract, pictures_in, read_features, save_features

        scoring.check()
        if self.save_features is not None and self.save_features.suffix != ".npz":
            raise InputError(f"cannot write {self.save_features}: the ending must be .npz")
        files = pictures_in(scoring.folder)
        if self.features is None:
            found = extract(files, logits, scoring.batch, scoring.place())
        elif len(found := read_features(self.features)) != len(files):
            what = f"{self.features} holds features of {len(found)} pictures"
            raise InputError(f"{what}, but {scoring.folder} has {len(files)}")
        if self.save_features is not None:
            save_features(self.save_features, found)
        return found, "file" if self.features else "torch-fidelity"


@scores.command()
@command
def fid(
    scoring: Scoring,
    given: Features,
    reference: Path = typer.Option(..., help="Real pictures: a folder, or a file with mu and sigma or features."),
) -> dict:
    """FID: the Fréchet distance between the features of these pictures and of real ones."""
    from rti.lab.pictures.scorers.fid import Statistics, extract, frechet_distance, pictures_in, read_statistics

    scoring.check()
    real = reference.expanduser()
    if real.suffix and not real.is_dir():
        wanted = read_statistics(real)
    else:
        wanted = Statistics.of(extract(pictures_in(real), False, scoring.batch, scoring.place()))
    found, origin = given.of(scoring, logits=False)
    scorer = {"features": origin, "reference": str(reference), "dimensions": found.shape[1]}
    distance = frechet_distance(Statistics.of(found), wanted)
    return scoring.of_all("fid", scorer, {"score": distance, "pictures": len(found)})


@scores.command(name="is")
@command
def inception(
    scoring: Scoring,
    given: Features,
    splits: int = number_option(10, help="Splits of the pictures; the score is their mean."),
) -> dict:
    """Inception Score: how sure a classifier is of each picture, and how many classes they cover."""
    from rti.lab.pictures.scorers.fid import inception_score

    found, origin = given.of(scoring, logits=True)
    mean, deviation = inception_score(found, splits)
    scorer = {"features": origin, "splits": splits, "dimensions": found.shape[1]}
    return scoring.of_all("is", scorer, {"score": mean, "deviation": deviation, "pictures": len(found)})
