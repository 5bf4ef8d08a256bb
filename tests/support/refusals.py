"""Checks of refusals: the class of the error and the names and numbers in its message, never its wording."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nescio import BadInput


@contextmanager
def refused(*mentions: object, error: type[Exception] = BadInput) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect `error` with a message of one line that contains every mention: a field, a name, a value, an option."""
    with pytest.raises(error) as caught:
        yield caught
    check_message(str(caught.value), *mentions)


def check_message(message: str, *mentions: object) -> None:
    """Check that a message is one complete line and contains every mention."""
    assert message.strip() and "\n" not in message.strip() and "Traceback" not in message, message
    missing = [str(mention) for mention in mentions if str(mention) not in message]
    assert not missing, f"{missing} not in {message!r}"
