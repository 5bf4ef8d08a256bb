"""Reliability of representations: candidates, sibling scores, downstream heads, and their agreement."""
