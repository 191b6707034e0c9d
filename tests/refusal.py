"""What a test says of a refusal: its code, which stays when the message is reworded, and words that it must have."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from noether.common.errors import RequestError


@contextmanager
def refusal(
    code: str = "", *, summary: str = "", seen: str = "", fix: str = "", words: str = ""
) -> Iterator[pytest.ExceptionInfo[RequestError]]:
    """The context in which a RequestError must be raised, with this code, and these words in its parts and in its text.

    Its `value` is the error.
    """
    with pytest.raises(RequestError) as caught:
        yield caught
    assert code in ("", caught.value.code)
    assert summary in caught.value.summary
    assert seen in caught.value.seen
    assert fix in caught.value.fix
    assert words in str(caught.value)


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
