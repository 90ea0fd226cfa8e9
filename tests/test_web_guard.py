"""What visitors may send to the page: nothing that grows without end, looks outward, or starts another program."""

import socket
from contextlib import contextmanager
from pathlib import Path

import pytest

from rti.web.studio import LONGEST_PROMPT
from test_shipped import made as made  # the fixture
from test_web import call, wait_until
from test_web_studio import PROMPT
from test_web_studio import studio as studio  # the fixture

pytest.importorskip("gradio")

import httpx  # gradio brings it

FEW = 4
OUTSIDE = {"path": "https://example.invalid/a.png", "meta": {"_type": "gradio.FileData"}}


@contextmanager
def serve(studio, folder: Path, **settings):
    """The page with other settings, somebody who asks it, and its folder of files."""
    from rti.web import page as pages

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(folder))
        for name, value in settings.items():
            patch.setattr(pages, name, value)
        page = pages.build_page(studio)
        with httpx.Client(base_url=pages.launch(page), timeout=60) as client:
            yield page, client, folder
        page.close()


@pytest.fixture(scope="module")
def served(studio, tmp_path_factory):
    with serve(studio, tmp_path_factory.mktemp("files"), VISITORS=FEW) as page:
        yield page


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def draw(client: httpx.Client, prompt: str) -> str:
    return call(client, "generate", prompt, 8, 0, 1.0, 1)


def test_no_more_visitors_are_held_than_there_are_places(served):
    page, client, _ = served
    for _ in range(2 * FEW):
        assert "prompt must have" in draw(client, " ")
    assert len(page.state_holder.session_data) <= FEW


def test_pictures_are_forgotten_after_a_while(studio, tmp_path):
    with serve(studio, tmp_path, KEPT_SECONDS=1) as (_, client, folder):
        assert "Done" in draw(client, PROMPT)
        assert files_in(folder)
        wait_until(lambda: not files_in(folder))


def test_a_request_is_no_longer_than_the_longest_prompt_needs(served):
    client = served[1]
    assert "Unknown words" in draw(client, "\U0001f600" * LONGEST_PROMPT)  # 12 KB, escaped
    assert "got 1,199" in draw(client, "a " * 600)
    for body in (b'{"data": ["' + b"a" * 40_000 + b'"]}', (b"a" * 1000 for _ in range(40))):  # also without a length
        answer = client.post("/gradio_api/call/generate", content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, "maximum allowed size" in answer.text) == (413, True)


def test_the_page_looks_up_no_name(served, monkeypatch):
    client, asked, look_up = served[1], [], socket.getaddrinfo

    def noted(host, *rest, **options):
        if host not in ("127.0.0.1", "localhost", None):
            asked.append(host)
            raise socket.gaierror("not asked in a test")
        return look_up(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", noted)
    for address in ("file=https://example.invalid/a.png", "file=http%3A%2F%2Fexample.invalid/a", "proxy=https://a.b/c"):
        assert client.get(f"/gradio_api/{address}").status_code == 403
    for subject in (OUTSIDE, [{"deep": OUTSIDE}]):
        assert "Files are not fetched" in call(client, "generate", subject, 8, 0, 1.0, 1)
    assert asked == []


@pytest.mark.parametrize("path", ["process_recording", "upload"])  # the first starts ffmpeg
def test_what_the_page_does_not_use_is_closed(served, path):
    _, client, folder = served
    before = files_in(folder)
    answer = client.post(f"/gradio_api/{path}", files={"files": ("a.mp4", b"abc")})
    assert (answer.status_code, files_in(folder)) == (403, before)
