"""From three ranks on, the order in which gradients are added matters: a resumed run must add them as before."""

import pytest
from conftest import final_hashes

pytestmark = pytest.mark.slow
# A constant rate: the length of the run, which is cut short by `max_updates`, changes nothing else.
COMMON = ("trainer.ema_decay=0.9", "optimizer.learning_rate=1e-2", "schedule=constant", "trainer.evaluate_every=null")
CUT_AT = 3


def test_a_run_cut_short_goes_on_bit_for_bit(train) -> None:
    common = ("devices=3", "trainer.effective_batch_size=12", *COMMON)
    undisturbed = train("undisturbed", *common)
    train("cut", *common, f"trainer.max_updates={CUT_AT}")
    resumed = train("cut", *common, "resume=auto")
    assert final_hashes(resumed) == final_hashes(undisturbed)
