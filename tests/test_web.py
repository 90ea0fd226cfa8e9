"""The page, by a visitor's hands: a real browser types, moves the dial, stops; and nothing leaves the machine.

Skipped where gradio is not there; the browser's tests also where playwright or a Chromium is not.
"""

import io
import json
import runpy
import shutil
import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlparse

import numpy as np
import pytest
from PIL import Image

import rti
from rti import shipped
from rti.web.studio import LONGEST_PROMPT
from test_cli import DATA, run
from test_shipped import made as made  # the fixture
from test_web_studio import PROMPT
from test_web_studio import studio as studio  # the fixture
from tiny import CORE, randomise_trainable, refused

pytest.importorskip("gradio")

ROOT = Path(__file__).parent.parent
SUBJECT = "#subject input, #subject textarea"
SECONDS = 120_000  # milliseconds, for a busy machine; each wait ends as soon as what it waits for is there


@pytest.fixture(scope="module")
def outside():
    """Addresses beyond this machine that this process tried to reach, which is not let through."""
    tried, connect = [], socket.socket.connect

    def guarded(self, address):
        host = address[0] if isinstance(address, tuple) else "localhost"
        if host not in ("127.0.0.1", "::1", "localhost", "0.0.0.0"):
            tried.append(address)
            raise OSError(f"{address} is not this machine")
        return connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded)
        yield tried


@pytest.fixture(scope="module")
def address(studio, outside):
    from rti.web.page import build_page, launch

    page = build_page(studio)
    yield launch(page)
    page.close()
    assert outside == []


def test_the_page_answers_this_machine_alone_and_tells_browsers_to_stay_on_it(address):
    import httpx

    assert urlparse(address).hostname == "127.0.0.1"
    answer = httpx.get(address, timeout=120)
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    assert "fonts.googleapis" not in answer.text


def call(client, name: str, *values) -> str:
    """What the page answers to a visitor of its own, as the text of its stream."""
    body = {"data": values, "session_hash": uuid.uuid4().hex}
    answer = client.post(f"/gradio_api/call/{name}", json=body)
    assert answer.status_code == 200, answer.text
    return client.get(f"/gradio_api/call/{name}/{answer.json()['event_id']}").text


def test_ten_visitors_at_once_all_get_a_picture(address):
    import httpx

    with httpx.Client(base_url=address, timeout=120) as client, ThreadPoolExecutor(10) as pool:
        texts = list(pool.map(lambda n: call(client, "generate", PROMPT, 8 + n, n, 1.0, 2), range(10)))
    results = [json.loads(text.rstrip().splitlines()[-1].removeprefix("data: ")) for text in texts]
    for number, (dense, region, _, message) in enumerate(results):
        assert message.startswith(f"Done, with {8 + number} regions")
        assert Image.open(region["path"]).size == Image.open(dense["path"]).size == (512, 512)
    assert len({Path(result[1]["path"]).read_bytes() for result in results}) == 10  # ten seeds, ten pictures


def browser_path() -> str | None:
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if browser_path() is None:
        pytest.skip("no Chromium here")
    with playwright.sync_playwright() as starter:
        opened = starter.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def context(browser):
    """One for all visits: what the browser has fetched once need not be fetched again."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(SECONDS)
    yield context
    context.close()


@pytest.fixture
def visit(context, address):
    """A visitor; nothing their page asks for may be elsewhere."""
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.wait_for_selector("#generate")
    yield page
    page.close()
    assert len(asked) > 10
    assert {urlparse(url).hostname for url in asked if not url.startswith(("data:", "blob:"))} == {"127.0.0.1"}


def status(page, words: str, where: str = "#status") -> str:
    """Wait until the page says so."""
    page.wait_for_function(
        "([where, words]) => document.querySelector(where).innerText.includes(words)", arg=[where, words]
    )
    return page.inner_text(where)


def wait_until(holds) -> None:
    end = time.perf_counter() + SECONDS / 1000
    while not holds():
        assert time.perf_counter() < end
        time.sleep(0.01)


def picture(page, where: str) -> np.ndarray:
    """What the browser shows there."""
    page.wait_for_selector(f"{where} img")
    answer = page.request.get(page.get_attribute(f"{where} img", "src"))
    return np.asarray(Image.open(io.BytesIO(answer.body())).convert("RGB"))


def test_a_visitor_types_a_prompt_moves_the_dial_and_sees_both_pictures_and_the_regions(visit, tmp_path):
    visit.fill(SUBJECT, "two green triangles")
    visit.fill("#budget input[type=range]", "12")
    visit.fill("#steps input[type=range]", "3")
    visit.click("#generate")
    assert "64, and 12 in the core, blocks {} to {} of 4".format(*CORE) in status(visit, "times as fast")
    dense, region, overlay = (picture(visit, where) for where in ("#dense", "#region", "#overlay"))
    assert dense.shape == region.shape == overlay.shape == (512, 512, 3)
    assert not np.array_equal(dense, region)
    changed = (overlay != region).any(axis=-1).mean()
    assert 0.01 < changed < 0.5  # lines on the same picture
    visit.screenshot(path=tmp_path / "draw.png")
    assert Image.open(tmp_path / "draw.png").width == 1200


def test_a_dial_that_was_moved_does_not_change_what_is_said_of_the_pictures(visit):
    visit.fill("#budget input[type=range]", "12")
    visit.fill("#steps input[type=range]", "1")
    visit.click("#generate")
    status(visit, "Done, with 12 regions")
    visit.fill("#budget input[type=range]", "20")
    assert "with 12 regions" in visit.inner_text("#status")
    visit.press(SUBJECT, "Enter")
    status(visit, "Done, with 20 regions")


def test_an_example_is_a_click_away_and_the_page_fits_a_phone(visit):
    visit.get_by_text("two plain green triangles").click()
    visit.wait_for_function("where => document.querySelector(where).value == 'two plain green triangles'", arg=SUBJECT)
    visit.set_viewport_size({"width": 390, "height": 844})
    visit.wait_for_function("document.documentElement.scrollWidth == 390")


def test_a_visitor_who_asks_for_too_much_gets_a_sentence_and_keeps_the_pictures(visit):
    visit.fill("#steps input[type=range]", "1")
    visit.click("#generate")
    status(visit, "Done")
    drawn = [visit.get_attribute(f"{where} img", "src") for where in ("#dense", "#region", "#overlay")]
    visit.fill(SUBJECT, "a " * 600)
    assert len(visit.input_value(SUBJECT)) == LONGEST_PROMPT
    visit.fill(SUBJECT, "a purple zebra")
    visit.click("#generate")
    assert status(visit, "zebra").startswith("Unknown words")
    assert [visit.get_attribute(f"{where} img", "src") for where in ("#dense", "#region", "#overlay")] == drawn


def test_a_visitor_stops_a_run(visit, studio, monkeypatch):
    head, calls = studio.backbone.head, []

    def slow(tokens):
        calls.append(time.perf_counter())
        time.sleep(0.05)
        return head(tokens)

    monkeypatch.setattr(studio.backbone, "head", slow)
    visit.fill("#steps input[type=range]", "200")
    visit.click("#generate")
    status(visit, "Drawing dense: step")
    visit.click("#stop")
    status(visit, "Stopped")
    visit.fill("#steps input[type=range]", "1")
    visit.click("#generate")  # at once, whatever the stopped run still does
    status(visit, "Done")
    assert 0 < len(calls) < 200
    visit.fill("#steps input[type=range]", "200")
    visit.dblclick("#generate")
    status(visit, "of 200")
    visit.click("#stop")
    wait_until(lambda: not studio.turn.locked())
    time.sleep(0.5)
    assert not studio.turn.locked()  # and nothing starts afterwards
    assert "Stopped" in visit.inner_text("#status")


def test_a_visitor_in_line_is_told_and_stops_without_waiting_and_who_leaves_makes_room(
    visit, context, address, studio, monkeypatch
):
    head = studio.backbone.head
    monkeypatch.setattr(studio.backbone, "head", lambda tokens: time.sleep(0.05) or head(tokens))
    somebody = context.new_page()
    somebody.goto(address)
    somebody.fill("#steps input[type=range]", "200")
    somebody.click("#generate")
    status(somebody, "Drawing dense: step")
    visit.fill("#steps input[type=range]", "1")
    visit.click("#generate")
    status(visit, "queue: 1/1")
    visit.click("#stop")
    assert "queue" not in status(visit, "Stopped")
    visit.click("#generate")
    status(visit, "queue: 1/1")
    somebody.close()  # whose picture would take 20 seconds
    started = time.perf_counter()
    status(visit, "Done")
    assert time.perf_counter() - started < 15


# The command and the Space.


def test_the_command_serves_the_model_it_was_given(capsys, tmp_path, monkeypatch):
    model = rti.attach(rti.load_backbone(DATA / "jit-tiny"), rti.RegionConfig(core=(2, 3)))
    randomise_trainable(model).save_pretrained(tmp_path / "adapter")
    served, address = [], "http://127.0.0.1:7999/"
    monkeypatch.setattr("rti.web.page.launch", lambda page, host, port: served.append((host, port)) or address)
    monkeypatch.setattr("gradio.Blocks.block_thread", lambda page: None)
    code, out, err = run(capsys, "web", tmp_path / "adapter", "--port", 7999, "--json", "--study", "results")
    assert code == 0, err
    assert served == [("127.0.0.1", 7999)]
    assert f"loading {tmp_path / 'adapter'}" in err
    assert "--study is gone" in err
    words, line = out.splitlines()
    assert address in words
    assert json.loads(line) == {"url": address}
    code, _, err = run(capsys, "web", DATA / "jit-tiny")
    assert (code, "adapter" in err) == (2, True)
    code, _, err = run(capsys, "web", tmp_path / "adapter", "--port", 0)
    assert (code, "port must be a whole number from 1 to 65535, got 0" in err) == (2, True)
    assert len(served) == 1


def test_a_port_that_is_taken_is_one_line(studio):
    from rti.web.page import build_page, launch

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with refused(port):
            launch(build_page(studio), port=port)


def test_the_space_serves_the_model_inside_with_the_gradio_we_test(made, monkeypatch):
    header = (ROOT / "space" / "README.md").read_text(encoding="utf-8").split("---")[1]
    values = dict(line.split(": ", 1) for line in header.strip().splitlines())
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert values["sdk"] == "gradio"
    assert f"gradio=={values['sdk_version']}\n" in pinned
    monkeypatch.setattr(shipped, "MODELS", made)
    served = []
    monkeypatch.setattr("rti.web.page.launch", lambda page, host: served.append(host))
    monkeypatch.setattr("gradio.Blocks.block_thread", lambda page: None)
    runpy.run_path(str(ROOT / "space" / values["app_file"]))
    assert served == [None]
