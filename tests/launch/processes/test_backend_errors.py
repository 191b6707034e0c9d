"""What exceptions of gloo, NCCL and torch's store say of a rank's peers."""

import pytest
import torch.distributed as dist

from noether.common.errors import EndedByAnother, RanksLate, RequestError
from noether.launch.processes.backend_errors import consequence_of
from noether.launch.processes.worker import failure_report

CLOSED = "[pair.cc:553] Connection closed by peer [127.0.0.1]:1"


class OwnError(RuntimeError):
    pass


@pytest.mark.parametrize(
    ("error", "follows", "waited_s"),
    [
        pytest.param(RuntimeError(CLOSED), "lost-peer", 0, id="gloo's lost peer"),
        pytest.param(dist.DistBackendError("ncclRemoteError: A call failed"), "lost-peer", 0, id="NCCL's lost peer"),
        pytest.param(
            RuntimeError("[unbound_buffer.cc:81] Timed out waiting 5000ms for recv"),
            "timed-out",
            5,
            id="gloo",
        ),
        pytest.param(
            dist.DistBackendError("[Rank 1] Watchdog caught collective operation timeout: Timeout(ms)=7000) ran for"),
            *("timed-out", 7),
            id="NCCL's watchdog",
        ),
        pytest.param(RanksLate(9.0), "timed-out", 9, id="the ranks' store"),
        pytest.param(ValueError(CLOSED), "", 0, id="a user's own words"),
        pytest.param(OwnError(CLOSED), "", 0, id="a user's own class"),
        pytest.param(RuntimeError("boom"), "", 0, id="another error"),
    ],
)
def test_what_an_exception_says_of_the_peers(error: Exception, follows: str, waited_s: float) -> None:
    assert consequence_of(error) == (follows, waited_s)


def test_a_report_carries_the_kind_of_its_refusal() -> None:
    refused = failure_report(RequestError("some-code", "rank 0 refused the run"), 1, "n1")
    assert (refused.kind, refused.code, refused.follows) == ("refused", "some-code", "")
    followed = failure_report(EndedByAnother("ended-by-rank-0", "any words"), 1, "n1")
    assert (followed.kind, followed.code, followed.follows) == ("refused", "ended-by-rank-0", "lost-peer")
