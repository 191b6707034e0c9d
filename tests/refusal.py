"""What a test says of a refusal: its code, which stays when the message is reworded."""

import pytest

from noether.errors import RequestError


def refusal(code: str) -> pytest.RaisesExc[RequestError]:
    """Returns the context in which a RequestError with this code must be raised; its `value` is the error."""
    return pytest.raises(RequestError, check=lambda error: error.code == code)
