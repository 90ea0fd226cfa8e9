"""The prompts of each benchmark: how they are read, checked and fetched."""

import hashlib
import json
from pathlib import Path

import pytest

from rti.lab import scenes
from rti.lab.pictures.prompts import BENCHMARKS, open_prompts
from scorer_models import LINES, write_lines
from tiny import refused

SHARED = Path(__file__).parents[2] / "shared" / "data"
PARTI, GENEVAL = SHARED / "PartiPrompts.tsv", SHARED / "geneval_metadata.jsonl"


def needs(path):
    return pytest.mark.skipif(not path.is_file(), reason=f"{path} is not here")


# Files of the benchmarks.


@needs(PARTI)
def test_parti_prompts_are_1632_unique_prompts_with_their_quotes():
    prompts = open_prompts(str(PARTI))
    subjects = [prompt.prompt for prompt in prompts.prompts]
    assert len(subjects) == len(set(subjects)) == 1632
    raw = PARTI.read_bytes().split(b"\n")[1:-1]
    assert [subject.encode() for subject in subjects] == [line.split(b"\t")[0] for line in raw]  # byte by byte
    assert sum('"' in subject for subject in subjects) == sum(b'"' in line.split(b"\t")[0] for line in raw) == 22
    assert 'A robot painted as graffiti on a brick wall. The words "Fly an airplane" are written' in subjects[276]
    assert len({prompt.group for prompt in prompts.prompts}) == 12
    assert prompts.layout(prompts.prompts[7], 0, 1) == "00007.png"
    assert prompts.images == 1


@needs(GENEVAL)
def test_geneval_has_553_prompts_of_four_pictures_in_its_own_layout():
    prompts = open_prompts(str(GENEVAL))
    assert (len(prompts), prompts.images) == (553, 4)
    lines = GENEVAL.read_text().splitlines()
    assert [json.dumps(prompt.metadata) for prompt in prompts.prompts] == lines
    assert prompts.layout(prompts.prompts[12], 3, 4) == "00012/samples/0003.png"
    some = open_prompts(str(GENEVAL), count=12)
    assert len({prompt.group for prompt in some.prompts}) == 6  # spread over the whole file
    assert [prompt.index for prompt in some.prompts] == [index * 553 // 12 for index in range(12)]


@needs(GENEVAL)
@needs(PARTI)
def test_the_checksums_are_those_of_the_files():
    for name, path in (("geneval", GENEVAL), ("parti", PARTI)):
        assert BENCHMARKS[name][1] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_tab_separated_prompts_keep_quotes_and_odd_characters(tmp_path):
    lines = ["Prompt\tCategory\tChallenge\tNote", '"Quoted"\tArts\tBasic\t', 'a "b" c\tPeople\tBasic\tsays "x']
    lines += ["two\u2028lines\tArts\tBasic\t"]
    (tmp_path / "some.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    prompts = open_prompts(str(tmp_path / "some.tsv")).prompts
    assert [prompt.prompt for prompt in prompts] == ['"Quoted"', 'a "b" c', "two\u2028lines"]
    assert [prompt.group for prompt in prompts] == ["Arts", "People", "Arts"]


def test_metadata_in_genevals_format_is_read_line_by_line(tmp_path):
    prompts = open_prompts(str(write_lines(tmp_path / "lines.jsonl")))
    assert [prompt.prompt for prompt in prompts.prompts] == [line["prompt"] for line in LINES]
    assert [prompt.group for prompt in prompts.prompts] == [line["tag"] for line in LINES]
    assert prompts.prompts[4].metadata == LINES[4]


def mjhq(**changes):
    entries = {
        f"{category}{number}": dict(category=category, prompt=f"{category} {number}")
        for category, number in (("animals", 0), ("animals", 1), ("food", 0))
    }
    return entries | changes


def test_mjhq_pictures_lie_in_a_folder_for_each_category(tmp_path, monkeypatch):
    path = tmp_path / "meta_data.json"
    path.write_text(json.dumps(mjhq()))
    prompts = open_prompts(str(path))
    assert [prompt.prompt for prompt in prompts.prompts] == ["animals 0", "animals 1", "food 0"]
    assert [prompts.layout(one, 0, 1) for one in prompts.prompts] == [
        "animals/animals0.png",
        "animals/animals1.png",
        "food/food0.png",
    ]
    monkeypatch.setattr("rti.lab.pictures.prompts.fetch", lambda address: path)
    with refused("3 prompts; MJHQ-30K has 30000"):
        open_prompts("mjhq")  # what was fetched must be the whole


@pytest.mark.parametrize("entry", [
    {"../evil": dict(category="animals", prompt="p")},
    {"name": dict(category="../up", prompt="p")},
    {"name": dict(category="a/b", prompt="p")},
    {".hidden": dict(category="animals", prompt="p")},
    {"name": dict(category="animals")},
    {"name": "a prompt"},
])  # fmt: skip
def test_mjhq_names_that_are_no_plain_names_are_refused(tmp_path, entry):
    (tmp_path / "meta.json").write_text(json.dumps(mjhq(**entry)))
    with refused("meta.json"):
        open_prompts(str(tmp_path / "meta.json"))


def test_a_text_file_has_a_prompt_per_line(tmp_path):
    (tmp_path / "mine.txt").write_text("a red cube\r\n\n  a blue ball \n", encoding="utf-8")
    prompts = open_prompts(str(tmp_path / "mine.txt"))
    assert [(prompt.index, prompt.prompt) for prompt in prompts.prompts] == [(0, "a red cube"), (1, "a blue ball")]
    assert prompts.layout(prompts.prompts[1], 2, 4) == "00001-0002.png"


# Prompts that need no file.


@pytest.mark.parametrize("count", [50, 100, 57])
def test_class_labels_are_balanced(count):
    prompts = open_prompts("classes", count, classes=10)
    assert prompts.kind == "labels"
    labels = [prompt.prompt for prompt in prompts.prompts]
    sizes = [labels.count(label) for label in range(10)]
    assert sum(sizes) == count and max(sizes) - min(sizes) <= 1
    assert len({prompts.layout(one, 0, 1) for one in prompts.prompts}) == count


def test_fifty_thousand_labels_are_the_default():
    labels = [prompt.prompt for prompt in open_prompts("classes", classes=1000).prompts]
    assert len(labels) == 50_000
    assert {labels.count(label) for label in (0, 1, 500, 999)} == {50}
    with refused("class-conditional"):
        open_prompts("classes")


def test_scenes_are_the_prompts_of_the_world_with_what_they_ask_for():
    prompts = open_prompts("scenes", 12, seed=3, split="held-out").prompts
    world = scenes.prompts(12, 3, "held-out")
    assert [prompt.prompt for prompt in prompts] == [scene.caption for scene in world]
    assert [prompt.metadata for prompt in prompts] == [scene.metadata() for scene in world]
    assert [prompt.group for prompt in prompts] == list(scenes.TASKS) * 2
    assert len(open_prompts("scenes")) == 240


def test_the_digest_tells_prompts_apart_and_not_their_file(tmp_path):
    one, copy, other = tmp_path / "one.jsonl", tmp_path / "copy.jsonl", tmp_path / "other.jsonl"
    for path in (one, copy):
        write_lines(path)
    other.write_text("".join(json.dumps(line) + "\n" for line in reversed(LINES)))
    digests = [open_prompts(str(path)).digest() for path in (one, copy, other)]
    assert digests[0] == digests[1] != digests[2]
    assert open_prompts(str(one), count=3).digest() != digests[0]


BAD_FILES = {
    "an unknown name": ("drawbench", None, ("drawbench", "geneval")),
    "a file that is not there": ("nowhere.txt", None, ("nowhere.txt",)),
    "an empty file": ("empty.txt", "\n \n", ("empty.txt", "no prompt")),
    "other columns": ("some.tsv", "Text\tKind\na\tb\n", ("Text", "Prompt")),
    "a line without a tab": ("some.tsv", "Prompt\tCategory\na b\n", ("line 2",)),
    "an empty table": ("some.tsv", "", ("some.tsv",)),
    "lines that are no JSON": ("some.jsonl", "a prompt\n", ("line 1", "JSON")),
    "lines without a prompt": ("some.jsonl", '{"tag": "colors"}\n', ("line 1", "prompt")),
    "a line that cannot be judged": ("some.jsonl", '{"tag": "colors", "prompt": "x", "include": []}\n', ("line 1",)),
    "bytes that are no text": ("some.txt", b"\xff\xfe\xff", ("some.txt",)),
    "a list": ("some.json", "[1]", ("some.json",)),
}


@pytest.mark.parametrize(("name", "content", "named"), BAD_FILES.values(), ids=BAD_FILES)
def test_prompts_that_cannot_be_read_are_refused(tmp_path, monkeypatch, name, content, named):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with refused(*named):
        open_prompts(name)


@pytest.mark.parametrize("count", [0, -1, 7])
def test_a_count_beyond_the_prompts_is_refused(tmp_path, count):
    with refused(count, "6 prompts"):
        open_prompts(str(write_lines(tmp_path / "lines.jsonl")), count=count)
    with refused("count"):
        open_prompts("scenes", count=min(count, 0))


# Fetching.


@pytest.fixture
def served(tmp_path, monkeypatch):
    """GenEval's address leads to a file of ours."""
    monkeypatch.setenv("RTI_CACHE", str(tmp_path / "cache"))
    source = write_lines(tmp_path / "evaluation_metadata.jsonl")
    address = source.as_uri()

    def expect(sha256):
        monkeypatch.setitem(BENCHMARKS, "geneval", (address, sha256))
        return source

    return expect


def test_a_benchmark_is_fetched_once_into_the_cache(served, tmp_path):
    source = served(hashlib.sha256(write_lines(tmp_path / "x.jsonl").read_bytes()).hexdigest())
    assert [prompt.prompt for prompt in open_prompts("geneval").prompts] == [line["prompt"] for line in LINES]
    source.unlink()
    assert len(open_prompts("geneval")) == 6
    assert open_prompts("geneval").source == "geneval"


def test_a_file_with_another_checksum_is_refused_and_not_kept(served, tmp_path):
    served("0" * 64)
    for _ in range(2):  # also at the second attempt
        with refused("sha256", "000000000000", "--prompts FILE.jsonl"):
            open_prompts("geneval")
    assert [path for path in (tmp_path / "cache").rglob("*.jsonl") if path.is_file()] == []
