"""`rti score`: how good the pictures of a folder are, by each of the field's measures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rti.cli.models import DEVICE_HELP
from rti.cli.output import show_json, show_table
from rti.cli.warn import one_line_warnings
from rti.errors import InputError

if TYPE_CHECKING:
    from rti.picture_folder import PictureFolder
    from rti.scorers.results import Score, Scorer

scores = typer.Typer(
    no_args_is_help=True,
    help="Score the pictures of rti generate. For example: rti score clip runs/dense/parti. "
    "Models are loaded by name from the hub, or from a folder.",
)

FOLDER = typer.Argument(help="A folder of rti generate; for geneval also one in GenEval's own layout.")
PICTURES = typer.Argument(help="A folder of rti generate, or of any pictures.")
OUTPUT = typer.Option(None, "--output", "-o", help="File for the results. Default: scores/METRIC.json in the folder.")
DEVICE = typer.Option("auto", help=DEVICE_HELP)
JSON = typer.Option(False, "--json", help="Print one JSON line at the end.")
BATCH = typer.Option(16, help="Pictures at a time.")
FEATURES = typer.Option(
    None, help="Features of the pictures, from any network: .npz, .npy, .safetensors or .pt, (n, D)."
)
SAVE_FEATURES = typer.Option(None, help="Keep the features in this .npz file, for another time.")
EXTRACTOR_HELP = "What makes the features: clean-fid or torch-fidelity. Default: {}."


@scores.command()
@one_line_warnings()
def geneval(
    folder: Path = FOLDER,
    detector: str = typer.Option(
        None,
        help="Mask2Former, by hub name or folder, or 'scenes', the exact detector of the scenes world. "
        "Default: facebook/mask2former-swin-small-coco-instance; scenes for --prompts scenes.",
    ),
    clip: str = typer.Option(None, help="CLIP that names the colours. Default: openai/clip-vit-large-patch14."),
    output: Path = OUTPUT,
    device: str = DEVICE,
    json: bool = JSON,
) -> None:
    """GenEval: the share of pictures that show what was asked for, by task; overall is the mean of the tasks.

    The detector's weights are not those of the original, whose toolbox cannot be
    installed any more: compare scores of this command with each other only.
    """
    from rti.scorers.geneval import GenEvalScorer, SceneDetector

    pictures = _open(folder)
    source = ((pictures.manifest or {}).get("prompts") or {}).get("source")
    if detector == "scenes" or (detector is None and source == "scenes"):
        scorer, description = GenEvalScorer(SceneDetector()), {"detector": "scenes"}
        scorer.check(pictures.entries)
    else:
        from rti.scorers.clip import CLIP, Clip
        from rti.scorers.colours import ColourNames
        from rti.scorers.detector import MASK2FORMER, GenEvalDetector, Mask2Former

        description = {"detector": detector or MASK2FORMER, "clip": clip or CLIP}
        GenEvalScorer(GenEvalDetector).check(pictures.entries)  # it knows its classes before it is loaded
        where = _device(device)
        objects = Mask2Former.load(description["detector"], where)
        scorer = GenEvalScorer(GenEvalDetector(objects, ColourNames(Clip.load(description["clip"], device=where))))
    _score(pictures, "geneval", scorer, description, 1, output, json, by_group=True, scale=100)


@scores.command()
@one_line_warnings()
def clip(
    folder: Path = FOLDER,
    model: str = typer.Option("openai/clip-vit-large-patch14", help="CLIP, by hub name or folder."),
    batch: int = BATCH,
    output: Path = OUTPUT,
    device: str = DEVICE,
    json: bool = JSON,
) -> None:
    """CLIPScore: 100 x the cosine between picture and prompt, at least 0."""
    from rti.scorers.clip import Clip, clip_scorer

    pictures = _open(folder, texts=True)
    scorer = clip_scorer(Clip.load(model, device=_device(device)))
    _score(pictures, "clip", scorer, {"model": model}, batch, output, json)


@scores.command()
@one_line_warnings()
def pick(
    folder: Path = FOLDER,
    model: str = typer.Option("yuvalkirstain/PickScore_v1", help="By hub name or folder."),
    processor: str = typer.Option("laion/CLIP-ViT-H-14-laion2B-s32B-b79K", help="Its tokenizer."),
    batch: int = BATCH,
    output: Path = OUTPUT,
    device: str = DEVICE,
    json: bool = JSON,
) -> None:
    """PickScore: a CLIP trained on what people pick."""
    from rti.scorers.clip import Clip, pick_scorer

    pictures = _open(folder, texts=True)
    scorer = pick_scorer(Clip.load(model, processor, _device(device)))
    _score(pictures, "pick", scorer, {"model": model, "processor": processor}, batch, output, json)


@scores.command()
@one_line_warnings()
def imagereward(
    folder: Path = FOLDER,
    model: str = typer.Option("THUDM/ImageReward", help="Hub name or folder with ImageReward.pt and med_config.json."),
    tokenizer: str = typer.Option("bert-base-uncased", help="By hub name or folder."),
    batch: int = BATCH,
    output: Path = OUTPUT,
    device: str = DEVICE,
    json: bool = JSON,
) -> None:
    """ImageReward: what people prefer, 0 on average over the pictures its authors used."""
    from rti.scorers.imagereward import ImageRewardScorer

    pictures = _open(folder, texts=True)
    scorer = ImageRewardScorer.load(model, tokenizer, _device(device))
    _score(pictures, "imagereward", scorer, {"model": model, "tokenizer": tokenizer}, batch, output, json)


@scores.command()
@one_line_warnings()
def fid(
    folder: Path = PICTURES,
    reference: str = typer.Option(
        ..., help="Real pictures: a folder, a file with mu and sigma or features, or a name known to clean-fid."
    ),
    features: Path = FEATURES,
    extractor: str = typer.Option("clean-fid", help=EXTRACTOR_HELP.format("clean-fid")),
    save_features: Path = SAVE_FEATURES,
    batch: int = BATCH,
    output: Path = OUTPUT,
    device: str = DEVICE,
    json: bool = JSON,
) -> None:
    """FID: the Fréchet distance between the features of these pictures and of real ones."""
    from rti.scorers.features import clean_fid_statistics, extract, pictures_in, read_statistics
    from rti.scorers.frechet import Statistics, frechet_distance

    real = Path(reference).expanduser()
    if real.is_file() or real.suffix:
        wanted = read_statistics(real)
    elif real.is_dir():
        wanted = Statistics.of(extract(pictures_in(real), extractor, False, batch, _device(device)))
    else:
        wanted = clean_fid_statistics(reference)
    found = _features(folder, features, extractor, False, save_features, batch, device)
    values = {"score": frechet_distance(Statistics.of(found), wanted), "pictures": len(found)}
    description = {"features": "file" if features else extractor, "reference": reference, "dimensions": found.shape[1]}
    _finish(_plain_score(folder, "fid", description, values), folder, output, json)


@scores.command(name="is")
@one_line_warnings()
def inception(
    folder: Path = PICTURES,
    features: Path = typer.Option(None, help="Logits of the pictures, from any classifier, as for fid."),
    extractor: str = typer.Option("torch-fidelity", help=EXTRACTOR_HELP.format("torch-fidelity")),
    save_features: Path = SAVE_FEATURES,
    splits: int = typer.Option(10, help="Splits of the pictures; the score is their mean."),
    batch: int = BATCH,
    output: Path = OUTPUT,
    device: str = DEVICE,
    json: bool = JSON,
) -> None:
    """Inception Score: how sure a classifier is of each picture, and how many classes they cover."""
    from rti.scorers.frechet import inception_score

    found = _features(folder, features, extractor, True, save_features, batch, device)
    result = inception_score(found, splits)
    values = {"score": result.mean, "deviation": result.std, "pictures": len(found)}
    description = {"features": "file" if features else extractor, "splits": splits, "dimensions": found.shape[1]}
    _finish(_plain_score(folder, "is", description, values), folder, output, json)


def _open(folder: Path, texts: bool = False) -> PictureFolder:
    """The folder; refuse, before a model is loaded, prompts that are no texts where texts are needed."""
    from rti.picture_folder import PictureFolder
    from rti.scorers.results import prompts_of

    pictures = PictureFolder.open(folder)
    if texts:
        prompts_of(pictures.entries)
    return pictures


def _device(device: str) -> str:
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device {device!r} is not usable here: {str(error).splitlines()[0]}") from None
    return device


def _features(
    folder: Path, features: Path | None, extractor: str, logits: bool, keep: Path | None, batch: int, device: str
) -> Any:
    from rti.picture_folder import MANIFEST, PictureFolder
    from rti.scorers.features import extract, pictures_in, read_features, save

    if (folder / MANIFEST).is_file():  # then the pictures it lists and no others, all of them
        pictures = PictureFolder.open(folder)
        files = sorted(pictures.file(entry, number) for entry, number in pictures.pictures)
    else:
        files = pictures_in(folder)
    found = read_features(features) if features else extract(files, extractor, logits, batch, _device(device))
    if len(found) != len(files):
        raise InputError(f"{features} holds features of {len(found)} pictures, but {folder} has {len(files)}")
    if keep is not None:
        save(keep, found)
    return found


def _plain_score(folder: Path, metric: str, description: dict[str, Any], values: dict[str, Any]) -> Score:
    """A score of all pictures together; of a folder that is ours it remembers which pictures they were."""
    from rti.picture_folder import MANIFEST, PictureFolder
    from rti.scorers.results import Score

    digest = PictureFolder.open(folder).digest if (folder / MANIFEST).is_file() else None
    return Score(metric, description, values, [], digest)


def _score(
    pictures: PictureFolder,
    metric: str,
    scorer: Scorer,
    description: dict[str, Any],
    batch: int,
    output: Path | None,
    json: bool,
    by_group: bool = False,
    scale: float = 1,
) -> None:
    from rti.scorers.results import score_folder

    score = score_folder(pictures, metric, scorer, description, batch, by_group)
    _finish(score, pictures.path, output, json, scale)


def _finish(score: Score, folder: Path, output: Path | None, json: bool, scale: float = 1) -> None:
    """Write the file, show the table."""
    from rti.scorers.results import score_path

    path = score.write(output or score_path(folder, score.metric))
    summary = score.summary
    rows = [_row("all" if scale == 1 else "overall", summary["score"], summary.get("interval"), scale)]
    for group, value in summary.get("groups", {}).items():
        rows.append(_row(group, value, summary["group_intervals"][group], scale))
    by = ", ".join(f"{name} {value}" for name, value in score.scorer.items())
    title = f"{score.metric} of {folder}: {summary['pictures']} pictures{', %' if scale == 100 else ''}\n{by}"
    show_table(title, ("", "score", "95 % interval"), rows)
    print(path)
    if json:
        show_json({"folder": str(folder), "metric": score.metric, "output": str(path), **score.scorer, **summary})


def _row(name: str, value: float, interval: list[float] | None, scale: float) -> list[str]:
    shown = "" if interval is None else " to ".join(f"{scale * side:.{1 if scale == 100 else 3}f}" for side in interval)
    return [name, f"{scale * value:.{1 if scale == 100 else 3}f}", shown]
