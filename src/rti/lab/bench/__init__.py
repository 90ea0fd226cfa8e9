"""How fast a model is at each budget, and where time and memory go."""
