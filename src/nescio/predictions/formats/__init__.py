"""File formats of predictions, one module each. A new format needs one function with `@reader`."""
