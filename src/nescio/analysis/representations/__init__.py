"""Which representation to trust: candidates, scores of siblings, downstream heads, and how far these agree."""
