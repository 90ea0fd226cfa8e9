"""The laboratory: what measures the method. No other part of the package but the command line and the page imports it.

scenes     a procedural world of captioned pictures, and its exact judge
pictures   benchmarks: pictures at scale, scorers, paired comparison
probes     where tokens are redundant
study      token reductions under equal conditions
bench      how fast, and where the time goes
evaluation accuracy on the scenes world, and the velocity loss on unseen data
"""
