"""Training: the flow-matching loss, optimisers, and runs that survive being stopped."""
