"""The page of `rti web`, over a `Studio`. Nothing on it asks another machine for anything.

Visitors may send small requests, to the addresses the page uses, that name nothing outside this machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from rti.errors import InputError
from rti.method.budgets import resolve_budget
from rti.web.studio import LARGEST_SEED, LONGEST_PROMPT, MOST_STEPS, STEPS, Studio

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio is imported
os.environ["GRADIO_ANALYTICS_MAX_EVENTS"] = "100"  # of its own monitor, which holds the last 10,000 otherwise

try:
    import gradio
    from gradio_client.utils import is_file_obj_with_meta, traverse
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.responses import PlainTextResponse
except ImportError:
    raise InputError("the page needs gradio, which is not here: pip install 'region-tokens[demo]'") from None

TITLE = "Region tokens: one checkpoint, every compute budget"
CSS = """
.gradio-container {max-width: min(1100px, 100vw) !important; margin: auto}
#status {min-height: 3em}
#status .wrap {overflow: visible !important}  /* where Gradio tells the place in line */
"""
LOOK = dict(interactive=False, format="png", buttons=["download"], height=380)  # of every picture
VISITORS = 64  # in line at most, and whose last settings are held: the next takes the oldest's place
KEPT_SECONDS = 1800  # pictures that nobody asks for
LARGEST_REQUEST = 32 * 2**10  # bytes: the longest prompt takes 12 KB, all its characters escaped
# What a page asks of Gradio by POST; it could do more, such as start ffmpeg.
POSTS = ("/queue/join", "/cancel", "/reset", "/run/", "/call/")
# A browser that obeys this cannot be made to fetch from elsewhere, whatever a library would like.
POLICY = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"


class Guard:
    """Refuses other requests, and adds the policy to every answer. Plain ASGI, so that answers stream."""

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope: dict, receive: Any, send: Any) -> None:
        path, received = scope.get("path", ""), 0

        async def counted() -> dict:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > LARGEST_REQUEST:
                raise HTTPException(413, f"Longer than the maximum allowed size of {LARGEST_REQUEST:,} bytes.")
            return message

        async def with_policy(message: dict) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"content-security-policy", POLICY)]}
            await send(message)

        unused = scope.get("method") == "POST" and not any(part in path for part in POSTS)
        app = PlainTextResponse("Not on this page.", 403) if unused or is_outside(path) else self.app
        await app(scope, counted, with_policy)


def is_outside(path: str) -> bool:
    """Whether a file's address is that of another machine, which Gradio would look up."""
    return "://" in path or "/proxy=" in path


class _Page(gradio.Blocks):
    """Looks at what was sent before any value is prepared: Gradio would fetch a file from its address."""

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *rest: Any, **options: Any) -> Any:
        def refuse(file: dict[str, Any]) -> None:
            if is_outside(file["path"]):
                raise gradio.Error("Files are not fetched from an address.", print_exception=False)

        traverse(inputs, refuse, is_file_obj_with_meta)
        return await super().preprocess_data(block_fn, inputs, *rest, **options)


def build_page(studio: Studio) -> gradio.Blocks:
    """The page; `launch` serves it."""
    with _Page(title=TITLE, analytics_enabled=False, delete_cache=(1 + KEPT_SECONDS // 10, KEPT_SECONDS)) as page:
        gradio.Markdown(f"# {TITLE}")
        _fill(studio)
    return page.queue(max_size=VISITORS, default_concurrency_limit=1)  # one picture at a time


def _fill(studio: Studio) -> None:
    model, words, examples = studio.backbone, studio.text_tokens, studio.examples
    with gradio.Row(equal_height=True):
        about = dict(scale=6, elem_id="subject")
        if studio.by_label:
            last = model.config.num_classes - 1
            about |= dict(precision=0, minimum=0, maximum=last)
            subject = gradio.Number(examples[0], label=f"Class label, 0 to {last}", **about)
        else:
            subject = gradio.Textbox(examples[0], label="Prompt", max_length=LONGEST_PROMPT, **about)
        go = gradio.Button("Generate", variant="primary", elem_id="generate", min_width=100)
        stop = gradio.Button("Stop", elem_id="stop", min_width=100)
    if not studio.by_label:
        gradio.Examples(examples, subject)
    with gradio.Row():
        label, quarter = f"Budget: regions, of {model.patches} patches", resolve_budget(0.25, model.patches)
        budget = gradio.Slider(1, model.patches, quarter, step=1, label=label, scale=3, elem_id="budget")
        steps = gradio.Slider(1, MOST_STEPS, STEPS, step=1, label="Sampling steps", scale=2, elem_id="steps")
        guidance = gradio.Number(model.flow.guidance_scale, minimum=0, maximum=100, label="Guidance", min_width=80)
        seed = gradio.Number(0, precision=0, minimum=0, maximum=LARGEST_SEED, label="Seed", min_width=80)
        inputs = [subject, budget, seed, guidance, steps]
        if words is not None:
            inputs.append(gradio.Slider(1, words, words, step=1, label=f"Text tokens, of {words}", scale=2))
    status = gradio.Markdown("Both pictures start from the same noise.", elem_id="status")
    with gradio.Row():
        dense = gradio.Image(label="Dense: every patch a token", elem_id="dense", **LOOK)
        region = gradio.Image(label="Region tokens", elem_id="region", **LOOK)
        overlay = gradio.Image(label="Its regions", elem_id="overlay", **LOOK)

    def generate(*values: Any) -> Iterator[Any]:
        try:
            yield from studio.draw(*values)
        except InputError as error:
            text = str(error)
            yield {status: f"{text[:1].upper()}{text[1:]}."}  # what was drawn before stays

    shown = dict(api_name="generate", show_progress="minimal", show_progress_on=status)
    drawing = gradio.on([go.click, subject.submit], generate, inputs, [dense, region, overlay, status], **shown)
    hidden = dict(queue=False, show_progress="hidden", api_visibility="private")
    stop.click(None, cancels=[drawing], **hidden)
    drawing.failure(lambda: "Stopped.", None, status, **hidden)  # which to Gradio is also what was cancelled


def launch(page: gradio.Blocks, host: str | None = "127.0.0.1", port: int | None = None) -> str:
    """Serve the page in the background: its address. Host None leaves it to GRADIO_SERVER_NAME, as on a Space."""
    fonts = dict(font=["ui-sans-serif", "system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    theme = gradio.themes.Default(**fonts)  # the usual ones come from another machine
    options = dict(share=False, quiet=True, prevent_thread_lock=True, ssr_mode=False, enable_monitoring=False)
    options |= dict(footer_links=[], state_session_capacity=VISITORS, theme=theme, css=CSS)
    options["app_kwargs"] = {"middleware": [Middleware(Guard)]}
    try:
        _, address, _ = page.launch(server_name=host, server_port=port, **options)
    except OSError as error:
        raise InputError(f"cannot serve on {host}, port {port or 'any from 7860 on'}: {error}") from None
    return address
