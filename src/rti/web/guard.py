"""What visitors may send: small requests, to the addresses the page uses, that name nothing outside this machine."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.responses import PlainTextResponse

LARGEST_UPLOAD = 30 * 2**20  # bytes
LARGEST_REQUEST = 32 * 2**10  # bytes of any other: the longest prompt takes 12 KB, all its characters escaped
# What a page asks of Gradio by POST; it could do more, such as start ffmpeg.
POSTS = ("/queue/join", "/upload", "/cancel", "/reset", "/run/", "/call/", "/api/")
# A browser that obeys this cannot be made to fetch from elsewhere, whatever a library would like.
POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"


class Guard:
    """Refuses such requests, and adds the policy to every answer. Plain ASGI, so that answers stream."""

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope: dict, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, received = scope["path"], 0
        upload = path.endswith("/upload")
        most = LARGEST_UPLOAD + LARGEST_REQUEST if upload else LARGEST_REQUEST

        async def counted() -> dict:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if upload and message["type"] == "http.disconnect":
                raise MultiPartException("The upload ended early.")  # on which Gradio removes what has come
            if received > most:
                text = f"Longer than the maximum allowed size of {most:,} bytes."
                raise MultiPartException(text) if upload else HTTPException(413, text)
            return message

        async def with_policy(message: dict) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"content-security-policy", POLICY.encode())]}
            await send(message)

        try:
            if is_outside(path) or (scope["method"] == "POST" and not any(part in path for part in POSTS)):
                await PlainTextResponse("Not on this page.", 403)(scope, receive, with_policy)
            else:
                await self.app(scope, counted, with_policy)
        except TypeError as error:
            if not upload or "GradioUploadFile" not in str(error):
                raise
            await PlainTextResponse("The file has no name.", 400)(scope, receive, with_policy)


def is_outside(path: str) -> bool:
    """Whether a file's address is that of another machine, which Gradio would look up."""
    return "://" in path or "/proxy=" in path


def names_outside(value: Any) -> bool:
    """Whether a file that is not on this machine is among the values of a form, however deep."""
    if isinstance(value, dict):
        return is_outside(str(value.get("path", ""))) or any(map(names_outside, value.values()))
    return isinstance(value, list) and any(map(names_outside, value))
