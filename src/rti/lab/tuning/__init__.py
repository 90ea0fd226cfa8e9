"""`rti tune`: what can be turned and what it costs here (costs), how the best is found (search), the run (tuning)."""
