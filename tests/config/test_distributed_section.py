"""How long ranks wait: from the configuration, or from the environment of a job."""

from dataclasses import asdict

import pytest

from noether.config.distributed import DistributedConfig, with_environment
from noether.errors import RequestError
from noether.workers.context import DistributedSettings


def test_what_launchers_and_ranks_are_given_has_the_same_settings_and_defaults() -> None:
    assert asdict(DistributedSettings()) == DistributedConfig().model_dump()


@pytest.mark.parametrize(("text", "seconds"), [(None, 300.0), ("", 300.0), (" 90 ", 90.0), ("1e3", 1000.0)], ids=str)
def test_the_variable_overrides_the_steady_timeout(text: str | None, seconds: float) -> None:
    environ = {} if text is None else {"DISTRIBUTED_TIMEOUT_S": text}
    found = with_environment(DistributedConfig(), environ)
    assert (found.timeout_s, found.init_timeout_s) == (seconds, 600.0)


@pytest.mark.parametrize("text", ["5m", "0", "-1", "nan", "inf", "ten"])
def test_what_is_no_time_is_refused_with_the_line_to_write(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        with_environment(DistributedConfig(), {"DISTRIBUTED_TIMEOUT_S": text})
    assert f"DISTRIBUTED_TIMEOUT_S={text} is not a number of seconds" in str(caught.value)
    assert "DISTRIBUTED_TIMEOUT_S=300" in caught.value.fix
