"""Prompts to text states.

encoder     a frozen T5 of transformers, and what a text encoder must offer
words       one vector per word, for the small models that ship
vocabulary  the words of those
cache       states written once, read while a model trains
"""

from rti.text.encoder import T5TextEncoder, TextEncoder, load_text_encoder, text_encoder_of
from rti.text.words import WORDS

__all__ = ["WORDS", "T5TextEncoder", "TextEncoder", "load_text_encoder", "text_encoder_of"]
