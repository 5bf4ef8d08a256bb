"""The two ways in which nescio says no."""


class BadInput(ValueError):
    """What a person gave cannot be used: one sentence says what is wrong, where, and what to do."""


class Undefined(ValueError):
    """The question has no answer on this input: one sentence says why."""
