"""What a user may write after --data; downloads; the hub."""

import http.server
import multiprocessing
import pickle
import threading

import pytest
import torch

from rti.data import BrokenExample, Mixture, Shuffle, Tolerant, open_data
from rti.data.fetch import cache_folder, fetch
from rti.data.shards import WINDOW
from rti.errors import InputError
from test_data_source import colour_of, plain, write_tar


@pytest.fixture
def shard(tmp_path):
    members = [("0.png", plain((255, 0, 0))), ("0.txt", b"red"), ("1.png", plain((0, 255, 0))), ("1.txt", b"green")]
    return write_tar(tmp_path / "shard.tar", members)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RTI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shards"


@pytest.fixture
def server(shard):
    """Serves the shard's folder; `requests` lists what was asked, `cut` how often a name is to break in the middle."""
    requests, cut = [], {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            path = shard.parent / self.path.split("?")[0].lstrip("/")
            if not path.is_file():
                self.send_error(404)
                return
            data = path.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if cut.get(path.name, 0):
                cut[path.name] -= 1
                data = data[: len(data) // 2]
            self.wfile.write(data)

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.requests, running.cut = requests, cut
        running.url = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_shards_from_the_web_are_loaded_once(server, shard, cache):
    for _ in range(2):
        source = open_data(f"{server.url}/shard.tar", 8)
        assert [source[index].caption for index in range(2)] == ["red", "green"]
    assert server.requests == ["/shard.tar"]
    files = [path for path in cache.iterdir() if path.suffix != ".lock"]
    assert len(files) == 1 and files[0].name.endswith("-shard.tar") and files[0].read_bytes() == shard.read_bytes()


def test_patterns_and_queries_on_the_web(server, shard, cache):
    write_tar(shard.parent / "s0.tar", [("0.png", plain()), ("0.txt", b"zero")])
    write_tar(shard.parent / "s1.tar", [("0.png", plain()), ("0.txt", b"one")])
    source = open_data(server.url + "/s{0..1}.tar?key=1", 8)
    assert [source[index].caption for index in range(2)] == ["zero", "one"]


def test_a_failed_download_leaves_nothing(server, cache):
    server.cut["shard.tar"] = 99
    with pytest.raises(InputError, match=r"cannot download http.*shard\.tar: .*payload is not completed"):
        open_data(f"{server.url}/shard.tar", 8)
    assert [path for path in cache.iterdir() if path.suffix != ".lock"] == []
    server.cut.clear()
    assert len(open_data(f"{server.url}/shard.tar", 8)) == 2  # and the next run starts afresh


def test_what_is_not_there_is_told(server, cache):
    with pytest.raises(InputError, match=r"cannot download .*gone\.tar: it was not found"):
        open_data(f"{server.url}/gone.tar", 8)


def test_processes_that_start_together_load_once(server, cache, shard):
    """Forked from one that has loaded something itself, as the workers of a run are."""
    write_tar(shard.parent / "before.tar", [])
    fetch(f"{server.url}/before.tar")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=fetch, args=(f"{server.url}/shard.tar",)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert server.requests == ["/before.tar", "/shard.tar"]


def test_shards_of_any_store_that_fsspec_knows(shard, cache):
    import fsspec

    with fsspec.open("memory://bucket/shard.tar", "wb") as file:
        file.write(shard.read_bytes())
    assert [open_data("memory://bucket/{shard,shard}.tar", 8)[index].caption for index in range(3)][-1] == "red"
    fsspec.filesystem("memory").rm("/bucket", recursive=True)
    assert len(open_data("memory://bucket/shard.tar", 8)) == 2  # it is in the cache
    with pytest.raises(InputError, match=r"cannot download memory://bucket/gone\.tar"):
        open_data("memory://bucket/gone.tar", 8)


COUNTS = (3, 1, 4, 0, 2, 5, 2, 3, 1, 4)  # examples in each of ten shards


@pytest.fixture
def many(server, shard):
    """The address of ten shards of different lengths; captions tell shard and number. One has a broken picture."""
    for number, count in enumerate(COUNTS):
        members = []
        for example in range(count):
            picture = b"broken" if (number, example) == (2, 1) else plain()
            members += [(f"{example}.png", picture), (f"{example}.txt", f"{number} {example}".encode())]
        write_tar(shard.parent / f"many{number}.tar", members)
    return server.url + "/many{0..9}.tar"


def captions_of(source, positions) -> list[str]:
    shuffle, examples = Shuffle.of(source, 3), Tolerant(source)
    return [examples[shuffle.index(position)].example.caption for position in positions]


def test_many_remote_shards_are_loaded_in_turn(server, many, cache):
    """Bug 14 of the review: all of them were loaded before the first step."""
    source = open_data(many, 8, seed=5)
    first = captions_of(source, range(1))
    assert len(set(server.requests)) <= 2 * WINDOW  # this window, and the next behind our back
    epoch = sum(COUNTS)
    seen = first + captions_of(source, range(1, 3 * epoch))
    assert sorted(server.requests) == [f"/many{number}.tar" for number in range(10)]
    every = {f"{number} {example}" for number, count in enumerate(COUNTS) for example in range(count)}
    for start in (0, epoch, 2 * epoch):
        drawn = seen[start : start + epoch]
        assert len(drawn) == epoch and set(drawn) == every - {"2 1"}  # another stands in for the broken one
    assert len({tuple(seen[start : start + epoch]) for start in (0, epoch, 2 * epoch)}) == 3
    shards = [caption.split()[0] for caption in seen[:epoch]]
    assert shards != sorted(shards) and len(set(shards[:4])) > 1  # shards are mixed within a window


def test_many_remote_shards_go_on_exactly_where_they_were(server, many, cache, monkeypatch):
    """From any position, in another process, and where the cache was lost in between."""
    positions = [*range(0, 60, 7), 3, 26, 59]
    expected = dict(enumerate(captions_of(open_data(many, 8, seed=5), range(60))))
    source = open_data(many, 8, seed=5)
    assert captions_of(source, positions) == [expected[position] for position in positions]
    assert captions_of(pickle.loads(pickle.dumps(source)), positions) == [expected[position] for position in positions]
    monkeypatch.setenv("RTI_CACHE", str(cache / "lost"))
    assert captions_of(open_data(many, 8, seed=5), [17]) == [expected[17]]
    assert captions_of(open_data(many, 8, seed=6), range(60)) != list(expected.values())
    mixed = open_data(f"{many}@1,scenes@1", 64, seed=5)
    assert captions_of(mixed, range(40)) == captions_of(open_data(f"{many}@1,scenes@1", 64, seed=5), range(40))


def test_many_remote_shards_that_are_wrong(server, many, cache, shard):
    for number in range(10):
        write_tar(shard.parent / f"many{number}.tar", [])
    with pytest.raises(InputError, match="is empty: none of its 10 shards holds a picture"):
        open_data(many, 8)
    with pytest.raises(InputError, match=r"cannot download .*not found"):
        open_data(server.url + "/gone{0..9}.tar", 8)


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("RTI_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "rti"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "rti"
    monkeypatch.setenv("RTI_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_shards_of_the_hub(shard, monkeypatch):
    asked = []

    def hf_hub_download(repo_id, filename, repo_type, revision):
        asked.append((repo_id, filename, repo_type, revision))
        return str(shard)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", hf_hub_download)
    assert len(open_data("hf://datasets/owner/name/data/{0..1}.tar", 8)) == 4
    open_data("hf://datasets/owner/name@v2/x.tar", 8)
    assert asked == [
        ("owner/name", "data/0.tar", "dataset", None),
        ("owner/name", "data/1.tar", "dataset", None),
        ("owner/name", "x.tar", "dataset", "v2"),
    ]
    for address in ("hf://owner/name/x.tar", "hf://datasets/owner/name", "hf://datasets//name/x.tar"):
        with pytest.raises(InputError, match=r"hf://datasets/OWNER/NAME/PATH\.tar"):
            open_data(address, 8)


def test_the_hub_out_of_reach_is_one_line():
    """The tests run offline."""
    with pytest.raises(InputError, match=r"cannot download hf://datasets/nobody/nothing/x\.tar") as caught:
        open_data("hf://datasets/nobody/nothing/x.tar", 8)
    assert "\n" not in str(caught.value)


def test_several_with_weights(shard, tmp_path):
    other = tmp_path / "photos"
    other.mkdir()
    (other / "a.png").write_bytes(plain((0, 0, 255)))
    (other / "a.txt").write_text("blue")
    source = open_data(f"{shard}@0.06, {other}@1.6e-2,scenes@0.04", 64, seed=3)
    assert isinstance(source, Mixture) and source.kind == "text" and source.endless
    assert source.weights == pytest.approx([0.06 / 0.116, 0.016 / 0.116, 0.04 / 0.116])
    captions = [Tolerant(source)[index].example.caption for index in range(40)]
    assert {"red", "green", "blue"} < set(captions)
    again = open_data(f"{shard}@0.06,{other}@0.016,scenes@0.04", 64, seed=3)
    assert torch.equal(again[39].image, source[39].image)
    lone = open_data(f"{shard}@0.5", 8)
    assert len(lone) == 2 and not lone.endless


def test_a_path_with_commas_and_an_at_sign_is_a_path(shard, tmp_path):
    odd = tmp_path / "a@2,b@3.tar"
    shard.rename(odd)
    assert len(open_data(str(odd), 8)) == 2


def test_mixed_kinds(shard, tmp_path):
    labels = write_tar(tmp_path / "labels.tar", [("0.jpg", plain()), ("0.cls", b"1")])
    with pytest.raises(InputError, match=r"a mixture is of one kind.*\(text\).*\(labels\)"):
        open_data(f"{shard}@1,{labels}@1", 8)
    with pytest.raises(InputError, match="pictures without captions"):
        open_data(str(labels), 8, kind="text")


WRONG = {
    "": "allowed are scenes",
    "scenes@1,": "no data in",
    "@1,scenes@1": "no data in",
    "nowhere": "nowhere does not exist; allowed are scenes",
    "nowhere.tar": r"nowhere\.tar does not exist",
    "scenes,scenes": "needs a weight, as A@0.5,B@2; not all of 'scenes,scenes'",
    "scenes@0,scenes@1": "weight of data must be a finite number, above 0, got 0",
    "scenes@nan,scenes@1": "weight of data must be a finite number, above 0, got nan",
    "nowhere://host/x.tar": "cannot download nowhere://host/x.tar: Protocol not known",
    "hf:": "the form is hf:NAME",
    "hf:/no/such/folder": "cannot load hf:/no/such/folder",
    "http://127.0.0.1:1/x.tar": "cannot download",
}


@pytest.mark.parametrize("spec", WRONG)
def test_wrong_specs_are_told_in_one_line(spec, cache):
    if spec.startswith("hf:/"):
        pytest.importorskip("datasets")
    with pytest.raises(InputError, match=WRONG[spec]) as caught:
        open_data(spec, 64)
    assert "\n" not in str(caught.value)


def test_wrong_kinds_and_files(tmp_path):
    with pytest.raises(InputError, match="kind 'words' is unknown; allowed: text, labels"):
        open_data("scenes", 64, kind="words")
    (tmp_path / "x.zip").write_bytes(b"")
    with pytest.raises(InputError, match=r"x\.zip is not a \.tar file; allowed are"):
        open_data(str(tmp_path / "x.zip"), 64)


def hub_folder(tmp_path, columns: dict, features: dict) -> str:
    """A data set on disk that `datasets` reads as it reads one of the hub."""
    datasets = pytest.importorskip("datasets")
    (tmp_path / "set").mkdir()
    dataset = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    dataset.to_parquet(str(tmp_path / "set" / "train.parquet"))
    return f"hf:{tmp_path / 'set'}"


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    return datasets


def test_hub_captions(tmp_path, hub_cache):
    pictures = [plain((255, 0, 0)), b"broken", plain(7, mode="L"), plain()]
    columns = {"url": ["u"] * 4, "Img": [{"bytes": data, "path": None} for data in pictures]}
    columns["caption"] = ["rot", "kaputt", "grau 灰", None]
    text = hub_cache.Value("string")
    spec = hub_folder(tmp_path, columns, {"url": text, "Img": hub_cache.Image(), "caption": text})
    source = open_data(f"{spec}:train", 8)
    assert (source.kind, len(source)) == ("text", 4)
    assert (source[0].caption, colour_of(source[0].image)) == ("rot", [255, 0, 0])
    assert (source[2].caption, colour_of(source[2].image)) == ("grau 灰", [7, 7, 7])
    for index in (1, 3):
        with pytest.raises(BrokenExample, match=rf"row {index}"):
            source[index]
    assert Tolerant(source)[1].skipped == 1


def test_hub_classes(tmp_path, hub_cache):
    columns = {"image": [{"bytes": plain(), "path": None}] * 3, "label": [1, 0, -1]}
    spec = hub_folder(tmp_path, columns, {"image": hub_cache.Image(), "label": hub_cache.ClassLabel(names=["a", "b"])})
    source = open_data(spec, 8, flip=True)
    assert (source.kind, source.classes, len(source)) == ("labels", ["a", "b"], 6)
    assert [source[index].label for index in (0, 1, 3)] == [1, 0, 1]
    with pytest.raises(BrokenExample, match="row 2 has no class"):
        source[2]
    with pytest.raises(InputError, match="one of captions; its columns are image"):
        open_data(spec, 8, kind="text")


def test_hub_columns_not_found(tmp_path, hub_cache):
    spec = hub_folder(
        tmp_path, {"url": ["x"], "width": [3]}, {"url": hub_cache.Value("string"), "width": hub_cache.Value("int32")}
    )
    with pytest.raises(InputError, match=r"its columns are url \(string\), width \(int32\)"):
        open_data(spec, 8)


def test_without_the_datasets_library(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(InputError, match="pip install datasets"):
        open_data("hf:owner/name", 8)


@pytest.mark.parametrize(
    "wrong", [dict(spec=3), dict(seed="x"), dict(seed=-1), dict(flip=3), dict(kind=[]), dict(size=2**31)]
)
def test_options_of_another_kind_are_told_in_one_line(wrong):
    with pytest.raises(InputError) as caught:
        open_data(**{"spec": "scenes", "size": 64} | wrong)
    assert "\n" not in str(caught.value)
