"""Probes: where a model's tokens are redundant, and what each grouping makes of it (paper, "Token Redundancy").

measures     what is measured, as plain functions of tensors
trajectory   one guided sampling run, with hooks on the trunk or on the regions of a trained model
records      what a probe is, and the one runner of all
subjects     prompts or labels to probe with
redundancy   EV by block and step, a core span from it
groupings    every reduction, and the three orders          routing      where a trained partition puts its regions
figures      of the data that the probes leave              gallery      of pictures, and groups drawn on them
photograph   regions of plain pixels
"""
