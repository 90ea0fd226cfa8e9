"""What visitors may send: small requests, to the addresses the page uses, that name nothing outside this machine."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse

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
