"""Benchmarks: one paper's question each. Which trials, which splits, which rows."""
