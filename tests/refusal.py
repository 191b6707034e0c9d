"""What a test says of a refusal: its code, which stays when the message is reworded, or words that it must have."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from noether.common.errors import RequestError


def refusal(code: str) -> pytest.RaisesExc[RequestError]:
    """Returns the context in which a RequestError with this code must be raised; its `value` is the error."""
    return pytest.raises(RequestError, check=lambda error: error.code == code)


@contextmanager
def refusal_with(*words: str) -> Iterator[pytest.ExceptionInfo[RequestError]]:
    """The context in which a RequestError must be raised that has all its parts, and these words in any of them."""
    with pytest.raises(RequestError) as caught:
        yield caught
    assert caught.value.seen
    assert caught.value.expected
    assert caught.value.fix
    for word in words:
        assert word in str(caught.value)
