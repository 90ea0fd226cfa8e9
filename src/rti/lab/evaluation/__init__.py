"""Measuring quality: how often a model draws what it was asked for, and its loss on unseen data, at each budget."""
