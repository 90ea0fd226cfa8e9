"""Benchmarks: prompts, pictures at scale, their folders, scorers, and paired comparison."""
