"""Context managers that expect a RequestError with a given code, or with words that its text must contain."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from noether.common.errors import RequestError


@contextmanager
def refusal(
    code: str = "", *, summary: str = "", seen: str = "", fix: str = "", words: str = ""
) -> Iterator[pytest.ExceptionInfo[RequestError]]:
    """Expect a RequestError with this code, with the given words in its parts, and with `words` anywhere in its text.

    Yield pytest's exception info, whose `value` is the error.
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
    """Expect a RequestError that has all its parts, and whose text contains each of these words."""
    with pytest.raises(RequestError) as caught:
        yield caught
    assert caught.value.seen
    assert caught.value.expected
    assert caught.value.fix
    for word in words:
        assert word in str(caught.value)
