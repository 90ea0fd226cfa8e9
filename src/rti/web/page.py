"""The page of `rti web`: three tabs over a `Studio`. Nothing on it asks another machine for anything."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rti.errors import InputError
from rti.images import draw_regions
from rti.lab.probes.photograph import cut_photograph, load_photograph
from rti.lab.study.tables import table
from rti.method.budgets import resolve_budget
from rti.web.studio import LONGEST_PROMPT, MOST_STEPS, Request, Stopped, Studio
from rti.web.study import study_curves

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio is imported
os.environ["GRADIO_ANALYTICS_MAX_EVENTS"] = "100"  # of its own monitor, which holds the last 10,000 otherwise

try:
    import gradio

    from rti.web.guard import LARGEST_UPLOAD, Guard, names_outside
except ImportError:
    raise InputError("the page needs gradio, which is not here: pip install 'region-tokens[demo]'") from None

TITLE = "Region tokens: one checkpoint, every compute budget"
STEPS = 25
STUDY = (
    "Token reductions under the same conditions, on the world of scenes: the same frozen backbone, data, training "
    "steps, prompts and noise; only the rule differs."
)
CSS = """
.gradio-container {max-width: min(1100px, 100vw) !important; margin: auto}
#status {min-height: 5em}
#status .wrap {overflow: visible !important}  /* where Gradio tells the place in line */
#study_table {overflow-x: auto}
#study_table th, #study_table td {padding: 3px 6px; font-size: 12px; word-break: keep-all; overflow-wrap: normal}
#study_table td {white-space: nowrap}
"""
LOOK = dict(interactive=False, format="png", buttons=["download"])  # of every picture
VISITORS = 64  # in line at most; and whose last pictures are held, about 2 MB each: the next takes the oldest's place
KEPT_SECONDS = 1800  # pictures and uploads that nobody asks for


class _Page(gradio.Blocks):
    """Looks at what was sent before any value is prepared: Gradio would fetch a file from its address."""

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *rest: Any, **options: Any) -> Any:
        if names_outside(inputs):
            raise gradio.Error("Files are uploaded, not fetched from an address.", print_exception=False)
        return await super().preprocess_data(block_fn, inputs, *rest, **options)


def build_page(studio: Studio, study: dict[str, Any] | None = None) -> gradio.Blocks:
    """The page, with a study's results where there are some; `launch` serves it."""
    with _Page(title=TITLE, analytics_enabled=False, delete_cache=(1 + KEPT_SECONDS // 10, KEPT_SECONDS)) as page:
        gradio.Markdown(f"# {TITLE}")
        with gradio.Tab("Draw"):
            _draw_tab(page, studio)
        with gradio.Tab("Your photograph"):
            _photograph_tab()
        if study is not None:
            with gradio.Tab("Study"):
                _study_tab(study)
    return page.queue(max_size=VISITORS, default_concurrency_limit=1)  # one picture, one photograph at a time


def _draw_tab(page: gradio.Blocks, studio: Studio) -> None:
    patches, words = studio.backbone.patches, studio.text_tokens
    with gradio.Row():
        with gradio.Column(scale=2, min_width=280):
            if studio.by_label:
                last = studio.backbone.config.num_classes - 1
                subject = gradio.Number(0, precision=0, label=f"Class label, 0 to {last}", elem_id="subject")
            else:
                text = dict(lines=2, max_length=LONGEST_PROMPT, elem_id="subject")
                subject = gradio.Textbox(first_prompt(studio), label="Prompt", **text)
            label, quarter = f"Budget: regions, of {patches} patches", resolve_budget(0.25, patches)
            budget = gradio.Slider(1, patches, quarter, step=1, label=label, elem_id="budget")
            most = words or 2  # unseen where text cannot be turned down
            unseen = dict(visible=words is not None, elem_id="text_budget")
            text_budget = gradio.Slider(1, most, most, step=1, label=f"Text budget: text tokens, of {most}", **unseen)
            with gradio.Row():
                seed = gradio.Number(0, precision=0, label="Seed", min_width=80, elem_id="seed")
                scale = studio.backbone.flow.guidance_scale
                guidance = gradio.Number(scale, label="Guidance", min_width=80, elem_id="guidance")
            steps = gradio.Slider(1, MOST_STEPS, STEPS, step=1, label="Sampling steps", elem_id="steps")
            with gradio.Row():
                go = gradio.Button("Generate", variant="primary", elem_id="generate", min_width=80)
                stop = gradio.Button("Stop", elem_id="stop", min_width=80)
        with gradio.Column(scale=5):
            with gradio.Row():
                dense = gradio.Image(label="Dense: every patch a token", elem_id="dense", height=380, **LOOK)
                region = gradio.Image(label="Region tokens", elem_id="region", height=380, **LOOK)
            show = gradio.Checkbox(label="Show the regions of the last step", value=False, elem_id="overlay")
            status = gradio.Markdown("Both pictures start from the same noise.", elem_id="status")
    drawn = gradio.State((None, None), time_to_live=KEPT_SECONDS)  # the region picture without and with its regions
    wish = gradio.State(time_to_live=KEPT_SECONDS)  # what stops the run that the visitor asked for last
    running: dict[str, threading.Event] = {}  # the same, by visitor

    def halt(who: gradio.Request) -> None:
        """Stop the visitor's run. One in line ends when its turn comes, unless Gradio takes it out before."""
        if stop := running.pop(who.session_hash, None):
            stop.set()

    def say_halted(who: gradio.Request) -> str:
        halt(who)
        return "Stopped."

    async def begin(who: gradio.Request) -> threading.Event:
        """A second click draws anew. Not in a thread: of two clicks the later one must win."""
        halt(who)
        return running.setdefault(who.session_hash, threading.Event())

    def generate(
        subject: Any, seed: Any, steps: Any, guidance: Any, budget: Any, text_budget: Any, show: bool, stop: Any
    ) -> Iterator[tuple]:
        stop, skip = stop or threading.Event(), gradio.skip()  # skip: what was drawn before stays
        if stop.is_set():  # while it was in line
            yield skip, skip, skip, skip
            return
        text = int(text_budget) if words is not None and text_budget != words else None
        request = Request(_whole(subject), _whole(seed), _whole(steps), guidance, _whole(budget), text)
        try:
            for frame in studio.draw(request, stop):
                pictures = frame.region, frame.overlay or frame.region
                yield frame.dense, pictures[show], frame.message, pictures
        except (Stopped, InputError) as error:
            yield skip, skip, _sentence(error), skip

    hidden = dict(queue=False, show_progress="hidden", api_visibility="private")
    drawing = go.click(begin, None, wish, trigger_mode="multiple", **hidden).then(
        generate,
        [subject, seed, steps, guidance, budget, text_budget, show, wish],
        [dense, region, status, drawn],
        api_name="generate",
        trigger_mode="multiple",
        show_progress="minimal",
        show_progress_on=status,
    )
    stop.click(say_halted, None, status, cancels=[drawing], **hidden)
    show.change(lambda show, drawn: drawn[show] or gradio.skip(), [show, drawn], region, **hidden)
    page.unload(halt)  # nobody looks any more


def _photograph_tab() -> None:
    gradio.Markdown("The regions of a photograph, by the pixels of its patches; no model is asked.")
    with gradio.Row():
        with gradio.Column(scale=2, min_width=280):
            file = gradio.File(label="A photograph: PNG, JPEG, WebP", elem_id="photograph")
            share = gradio.Slider(1, 100, 25, step=1, label="Budget: regions, % of the patches", elem_id="share")
            cuts = gradio.Radio(["merge", "gaps", "fixed"], value="merge", label="Rule that places the cuts")
        with gradio.Column(scale=5):
            picture = gradio.Image(label="Its regions", elem_id="cut", height=460, **LOOK)
            status = gradio.Markdown(elem_id="cut_status")

    def cut(path: str | None, share: float, cuts: str) -> tuple:
        if path is None:
            return None, "Upload a photograph first."
        try:
            photograph, grid = load_photograph(path, 512, 16)
            budget = resolve_budget(share / 100, grid[0] * grid[1])
            found = cut_photograph(photograph, grid, 16, budget, cuts, "hilbert")
        except InputError as error:
            return None, _sentence(error, path)
        kept, even = 100 * found.retained, 100 * found.retained_by_even_cuts
        text = f"{budget} regions of {grid[0] * grid[1]} patches; the largest has {found.largest} patches, "
        text += f"{found.singles} have one. They keep {kept:.1f} % of the pixels' variance, even cuts {even:.1f} %."
        return draw_regions(photograph, found.regions, grid), text

    changes = [file.change, share.release, cuts.change]
    gradio.on(changes, cut, [file, share, cuts], [picture, status], show_progress="minimal", api_name="cut")


def _study_tab(values: dict[str, Any]) -> None:
    done = f"{values['done']} of {values['jobs']} jobs of the study are done." if "done" in values else ""
    gradio.Markdown(f"{STUDY} {done}", elem_id="study")
    curves = list(study_curves(values))
    for first in range(0, len(curves), 2):
        with gradio.Row():
            for name, figure in curves[first : first + 2]:
                gradio.Plot(figure, label=name, show_label=False, format="png")
    gradio.Markdown(table(values), elem_id="study_table")


def first_prompt(studio: Studio) -> str:
    """A prompt that the model understands, to begin with."""
    from rti.lab.demo import PROMPTS
    from rti.text.words import WordEncoder

    return PROMPTS[0] if isinstance(studio.pipe.text_encoder, WordEncoder) else "a lighthouse in soft morning light"


def _whole(value: Any) -> Any:
    """Numbers of a form are often floats; what is no whole number is left for the check to refuse."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _sentence(error: Exception, path: str | None = None) -> str:
    """An error for a visitor: one line that begins with a capital and names no file of this machine."""
    text = " ".join(str(error).split())
    if path is not None:
        text = text.replace(path, Path(path).name)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def launch(
    page: gradio.Blocks,
    host: str | None = "127.0.0.1",
    port: int | None = None,
    wait: bool = True,
    as_json: bool = False,
) -> str:
    """Serve the page and give back its address. Host None leaves it to GRADIO_SERVER_NAME, as on a Space."""
    from starlette.middleware import Middleware

    fonts = dict(font=["ui-sans-serif", "system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    try:
        _, address, _ = page.launch(
            server_name=host,
            server_port=port,
            share=False,
            inbrowser=False,
            quiet=True,
            prevent_thread_lock=True,
            ssr_mode=False,
            show_error=False,
            footer_links=[],
            max_file_size=LARGEST_UPLOAD,
            state_session_capacity=VISITORS,
            theme=gradio.themes.Default(**fonts),  # the usual ones come from another machine
            css=CSS,
            app_kwargs={"middleware": [Middleware(Guard)]},
        )
    except OSError as error:
        raise InputError(f"cannot serve on {host}, port {port or 'any from 7860 on'}: {error}") from None
    if wait:
        print(f"rti web: {address}  (Ctrl-C ends it)", flush=True)
        if as_json:
            print(json.dumps({"url": address}), flush=True)
        page.block_thread()
    return address
