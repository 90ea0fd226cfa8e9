"""Probes: where a model's tokens are redundant, and what each grouping makes of it (paper, "Token Redundancy").

measures     what is measured, as plain functions of tensors
trajectory   one guided sampling run, with hooks on the trunk
journal      results prompt by prompt in a file, so that a probe goes on where it stopped
subjects     prompts or labels to probe with
redundancy   EV by block and step; a core span from it      groupings    every reduction, and the three orders
routing      where a trained partition puts its regions      pictures     detail of photographs
figures      the figures, from the data that the probes leave
"""
