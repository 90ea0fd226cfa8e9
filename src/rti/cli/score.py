"""`rti score`: how good the pictures of a folder are, by each of the field's measures."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rti.cli.models import DEVICE_HELP
from rti.cli.options import command, number_option
from rti.cli.output import say, show_json, show_table
from rti.errors import InputError

if TYPE_CHECKING:
    from rti.lab.pictures.folder import PictureFolder
    from rti.lab.pictures.scorers.results import Score, Scorer

scores = typer.Typer(
    no_args_is_help=True,
    help="Score the pictures of rti generate. For example: rti score clip runs/dense/parti. "
    "Models are loaded by name from the hub, or from a folder.",
)

BATCH = number_option(16, help="Pictures at a time.")
FEATURES = typer.Option(
    None, help="Features of the pictures, from any network: .npz, .npy, .safetensors or .pt, (n, D)."
)
SAVE_FEATURES = typer.Option(None, help="Keep the features in this .npz file, for another time.")
EXTRACTOR_HELP = "What makes the features: clean-fid or torch-fidelity. Default: {}."


@dataclass(frozen=True)
class Scoring:
    """What every measure is told."""

    folder: Path = typer.Argument(
        help="A folder of rti generate; for geneval also one in GenEval's own layout, for fid and is of any pictures."
    )
    output: Path = typer.Option(
        None, "--output", "-o", help="File for the results. Default: scores/METRIC.json in the folder."
    )
    device: str = typer.Option("auto", help=DEVICE_HELP)
    json: bool = typer.Option(False, "--json", help="Print one JSON line at the end.")

    def open(self, texts: bool = False) -> PictureFolder:
        """The folder; refuse, before a model is loaded, prompts that are no texts where texts are needed."""
        from rti.lab.pictures.folder import PictureFolder
        from rti.lab.pictures.scorers.results import prompts_of

        self.check_output()
        pictures = PictureFolder.open(self.folder)
        if texts:
            prompts_of(pictures.entries)
        return pictures

    def check_output(self, features: Path | None = None) -> None:
        """Refuse, before the work, to write over what is no result."""
        from rti.lab.pictures.scorers.results import check_output

        if self.output is not None:
            check_output(self.output)
        if features is not None and features.suffix != ".npz":
            raise InputError(f"cannot write {features}: the ending must be .npz")

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

    def score_prompts(self, metric: str, load: Callable[[str], Scorer], models: dict[str, str], batch: int) -> None:
        """A measure of each picture beside its prompt; the scorer is loaded when the prompts are known to be texts."""
        from rti.lab.pictures.scorers.results import score_folder

        pictures = self.open(texts=True)
        self.finish(score_folder(pictures, metric, load(self.place()), models, batch))

    def finish(self, score: Score, scale: float = 1) -> None:
        """Write the file, show the table."""
        from rti.lab.pictures.scorers.results import score_path

        path = score.write(self.output or score_path(self.folder, score.metric))
        summary = score.summary
        rows = [_row("all" if scale == 1 else "overall", summary["score"], summary.get("interval"), scale)]
        for group, value in summary.get("groups", {}).items():
            rows.append(_row(group, value, summary["group_intervals"][group], scale))
        by = ", ".join(f"{name} {value}" for name, value in score.scorer.items())
        title = f"{score.metric} of {self.folder}: {summary['pictures']} pictures{', %' if scale == 100 else ''}\n{by}"
        show_table(title, ("", "score", "95 % interval"), rows)
        say(path)
        if self.json:
            about = {"folder": str(self.folder), "metric": score.metric, "output": str(path)}
            show_json({**about, **score.scorer, **summary})


@scores.command()
@command
def geneval(
    scoring: Scoring,
    detector: str = typer.Option(
        None,
        help="Mask2Former, by hub name or folder, or 'scenes', the exact detector of the scenes world. "
        "Default: facebook/mask2former-swin-small-coco-instance; scenes for --prompts scenes.",
    ),
    clip: str = typer.Option(None, help="CLIP that names the colours. Default: openai/clip-vit-large-patch14."),
) -> None:
    """GenEval: the share of pictures that show what was asked for, by task; overall is the mean of the tasks.

    The detector's weights are not those of the original, whose toolbox cannot be
    installed any more: compare scores of this command with each other only.
    """
    from rti.lab.pictures.scorers.geneval import GenEvalScorer, SceneDetector
    from rti.lab.pictures.scorers.results import score_folder

    pictures = scoring.open()
    source = ((pictures.manifest or {}).get("prompts") or {}).get("source")
    if detector == "scenes" or (detector is None and source == "scenes"):
        scorer, description = GenEvalScorer(SceneDetector()), {"detector": "scenes"}
        scorer.check(pictures.entries)
    else:
        from rti.lab.pictures.scorers.clip import CLIP, Clip
        from rti.lab.pictures.scorers.colours import ColourNames
        from rti.lab.pictures.scorers.detector import MASK2FORMER, GenEvalDetector, Mask2Former

        description = {"detector": detector or MASK2FORMER, "clip": clip or CLIP}
        GenEvalScorer(GenEvalDetector).check(pictures.entries)  # it knows its classes before it is loaded
        where = scoring.place()
        objects = Mask2Former.load(description["detector"], where)
        scorer = GenEvalScorer(GenEvalDetector(objects, ColourNames(Clip.load(description["clip"], device=where))))
    scoring.finish(score_folder(pictures, "geneval", scorer, description, 1, by_group=True), scale=100)


@scores.command()
@command
def clip(
    scoring: Scoring,
    model: str = typer.Option("openai/clip-vit-large-patch14", help="CLIP, by hub name or folder."),
    batch: int = BATCH,
) -> None:
    """CLIPScore: 100 x the cosine between picture and prompt, at least 0."""
    from rti.lab.pictures.scorers.clip import Clip, clip_scorer

    scoring.score_prompts("clip", lambda device: clip_scorer(Clip.load(model, device=device)), {"model": model}, batch)


@scores.command()
@command
def pick(
    scoring: Scoring,
    model: str = typer.Option("yuvalkirstain/PickScore_v1", help="By hub name or folder."),
    processor: str = typer.Option("laion/CLIP-ViT-H-14-laion2B-s32B-b79K", help="Its tokenizer."),
    batch: int = BATCH,
) -> None:
    """PickScore: a CLIP trained on what people pick."""
    from rti.lab.pictures.scorers.clip import Clip, pick_scorer

    models = {"model": model, "processor": processor}
    scoring.score_prompts("pick", lambda device: pick_scorer(Clip.load(model, processor, device)), models, batch)


@scores.command()
@command
def imagereward(
    scoring: Scoring,
    model: str = typer.Option("THUDM/ImageReward", help="Hub name or folder with ImageReward.pt and med_config.json."),
    tokenizer: str = typer.Option("bert-base-uncased", help="By hub name or folder."),
    batch: int = BATCH,
) -> None:
    """ImageReward: what people prefer, 0 on average over the pictures its authors used."""
    from rti.lab.pictures.scorers.imagereward import ImageRewardScorer

    models = {"model": model, "tokenizer": tokenizer}
    scoring.score_prompts("imagereward", partial(ImageRewardScorer.load, model, tokenizer), models, batch)


@scores.command()
@command
def fid(
    scoring: Scoring,
    reference: str = typer.Option(
        ..., help="Real pictures: a folder, a file with mu and sigma or features, or a name known to clean-fid."
    ),
    features: Path = FEATURES,
    extractor: str = typer.Option("clean-fid", help=EXTRACTOR_HELP.format("clean-fid")),
    save_features: Path = SAVE_FEATURES,
    batch: int = BATCH,
) -> None:
    """FID: the Fréchet distance between the features of these pictures and of real ones."""
    from rti.lab.pictures.scorers.features import clean_fid_statistics, extract, pictures_in, read_statistics
    from rti.lab.pictures.scorers.frechet import Statistics, frechet_distance

    scoring.check_output(save_features)
    real = Path(os.path.expanduser(reference))
    if os.path.isfile(real) or real.suffix:
        wanted = read_statistics(real)
    elif os.path.isdir(real):
        wanted = Statistics.of(extract(pictures_in(real), extractor, False, batch, scoring.place()))
    else:
        wanted = clean_fid_statistics(reference)
    found = _features(scoring, features, extractor, False, save_features, batch)
    values = {"score": frechet_distance(Statistics.of(found), wanted), "pictures": len(found)}
    description = {"features": "file" if features else extractor, "reference": reference, "dimensions": found.shape[1]}
    scoring.finish(_plain_score(scoring.folder, "fid", description, values))


@scores.command(name="is")
@command
def inception(
    scoring: Scoring,
    features: Path = typer.Option(None, help="Logits of the pictures, from any classifier, as for fid."),
    extractor: str = typer.Option("torch-fidelity", help=EXTRACTOR_HELP.format("torch-fidelity")),
    save_features: Path = SAVE_FEATURES,
    splits: int = number_option(10, help="Splits of the pictures; the score is their mean."),
    batch: int = BATCH,
) -> None:
    """Inception Score: how sure a classifier is of each picture, and how many classes they cover."""
    from rti.lab.pictures.scorers.frechet import inception_score

    scoring.check_output(save_features)
    found = _features(scoring, features, extractor, True, save_features, batch)
    result = inception_score(found, splits)
    values = {"score": result.mean, "deviation": result.std, "pictures": len(found)}
    description = {"features": "file" if features else extractor, "splits": splits, "dimensions": found.shape[1]}
    scoring.finish(_plain_score(scoring.folder, "is", description, values))


def _features(
    scoring: Scoring, features: Path | None, extractor: str, logits: bool, keep: Path | None, batch: int
) -> Any:
    from rti.lab.pictures.folder import MANIFEST, PictureFolder
    from rti.lab.pictures.scorers.features import extract, pictures_in, read_features, save

    folder = scoring.folder
    if os.path.isfile(folder / MANIFEST):  # then the pictures it lists and no others, all of them
        pictures = PictureFolder.open(folder)
        files = sorted(pictures.file(entry, number) for entry, number in pictures.pictures)
    else:
        files = pictures_in(folder)
    found = read_features(features) if features else extract(files, extractor, logits, batch, scoring.place())
    if len(found) != len(files):
        raise InputError(f"{features} holds features of {len(found)} pictures, but {folder} has {len(files)}")
    if keep is not None:
        save(keep, found)
    return found


def _plain_score(folder: Path, metric: str, description: dict[str, Any], values: dict[str, Any]) -> Score:
    """A score of all pictures together; of a folder that is ours it remembers which pictures they were."""
    from rti.lab.pictures.folder import MANIFEST, PictureFolder
    from rti.lab.pictures.scorers.results import Score

    digest = PictureFolder.open(folder).digest if os.path.isfile(folder / MANIFEST) else None
    return Score(metric, description, values, [], digest)


def _row(name: str, value: float, interval: list[float] | None, scale: float) -> list[str]:
    shown = "" if interval is None else " to ".join(f"{scale * side:.{1 if scale == 100 else 3}f}" for side in interval)
    return [name, f"{scale * value:.{1 if scale == 100 else 3}f}", shown]
