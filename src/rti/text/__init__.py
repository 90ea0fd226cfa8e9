"""Prompts to text states.

encoder     a frozen T5 of transformers, and what a text encoder must offer
words       one vector per word, for the small models that ship
vocabulary  the words of those, without torch
"""
