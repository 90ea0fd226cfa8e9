"""Models and tokenizers from transformers, from the hub or a folder; failures in one line. No pickle is executed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rti.errors import InputError


def load_model(kind: str, source: str, device: str) -> Any:
    """A model of a class of transformers with all its weights: what a file lacks would else be left random."""
    with _one_line(source):
        import transformers

        kept = {"weights_only": True, "output_loading_info": True}
        model, report = getattr(transformers, kind).from_pretrained(source, **kept)
        model = model.to(device)
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("criterion."))  # that of training
    if missing:
        raise InputError(f"{source} is no {kind}: it lacks {len(missing)} weights, the first is {missing[0]}")
    return model.eval()


def load_tokenizer(source: str) -> Any:
    with _one_line(source):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(source)


@contextmanager
def _one_line(source: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except ImportError as error:
        raise InputError(f"cannot load {source}: {str(error).strip().splitlines()[0]}") from None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, AssertionError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"cannot load {source}: {lines[0]}") from None
