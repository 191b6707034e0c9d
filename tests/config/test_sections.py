"""The values that some sections accept: time limits of ranks, lengths with a unit, and further options of sbatch."""

import re

import pytest
from pydantic import TypeAdapter, ValidationError

from noether.common.errors import RequestError
from noether.config.compose import load_config
from noether.config.distributed import DistributedConfig, with_environment
from noether.config.section import Interval
from noether.training.run_length import RunLength
from tests.refusal import refusal


@pytest.mark.parametrize(("text", "seconds"), [(None, 300.0), ("", 300.0), (" 90 ", 90.0), ("1e3", 1000.0)], ids=str)
def test_the_variable_overrides_the_steady_timeout(text: str | None, seconds: float) -> None:
    environ = {} if text is None else {"DISTRIBUTED_TIMEOUT_S": text}
    found = with_environment(DistributedConfig(), environ)
    assert (found.timeout_s, found.init_timeout_s) == (seconds, 600.0)


@pytest.mark.parametrize("text", ["5m", "0", "-1", "nan", "inf", "ten"])
def test_what_is_no_time_is_refused_with_the_line_to_write(text: str) -> None:
    with refusal(fix="DISTRIBUTED_TIMEOUT_S=300", words=f"DISTRIBUTED_TIMEOUT_S={text} is not a number of seconds"):
        with_environment(DistributedConfig(), {"DISTRIBUTED_TIMEOUT_S": text})


LENGTHS = {"10 updates": 10, "1 update": 1, "2 epochs": 34, "1epoch": 17, "100 samples": 12, "3 samples": 1}


@pytest.mark.parametrize(("text", "updates"), [*LENGTHS.items(), ("5 %", 10), ("0 %", 0), ("2.5 %", 5)])
def test_every_unit_is_counted_in_updates(text: str, updates: int) -> None:
    interval = Interval.parse(text)
    assert RunLength(updates_per_epoch=17, effective_batch_size=8, total_updates=200).count_updates(interval) == updates


NO_LENGTHS = {10: "write '10 updates'", None: "null is not a length", "10": "length", "0 epochs": "whole number"}
NO_LENGTHS |= dict.fromkeys(("updates", "-1 updates", "10 minutes", ""), "is not a length") | {"1.5 epochs": "whole"}


@pytest.mark.parametrize(("value", "words"), NO_LENGTHS.items(), ids=str)
def test_what_is_no_length_is_refused(value: object, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TypeAdapter(Interval).validate_python(value)


@pytest.mark.parametrize("text", ["10 updates", "1 epoch", "5000 samples", "5 %", "2.5 %"])
def test_a_length_is_written_as_it_was_read(text: str) -> None:
    assert str(Interval.parse(text)) == text


CONTRADICTING = {
    "gpus-by-gres": ("{gres: gpu:4}", [], "slurm.gpus_per_node=4      (in place of "),
    "gpus-of-the-whole-job": ("{gpus: 8}", ["slurm.nodes=2"], "slurm.gpus_per_node=VALUE"),
    "gpus-of-each-task": ("{tres-per-task: 'gres/gpu:1'}", ["slurm.tasks_per_node=2"], "slurm.gpus_per_node=VALUE"),
    "gpus-of-a-type-by-gres": ("{gres: 'gpu:a100:2'}", [], "slurm.gpus_per_node=a100:2"),
    "nodes": ("{nodes: 2}", [], "slurm.nodes=2"),
    "cut-short-as-sbatch-takes-it": ("{no_req: true}", [], "slurm.max_requeues=0"),
    "memory-twice": ("{mem-per-cpu: 4G}", ["slurm.mem_gb=8"], "slurm.mem_gb=null"),
    "short-option": ("{t: 60}", [], "is not a long option of sbatch, such as `mail-type: END`"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "words", "way_out"), CONTRADICTING.values(), ids=CONTRADICTING.keys())
def test_a_further_option_that_contradicts_a_setting_is_refused_with_that_setting(given, words, way_out) -> None:
    with pytest.raises(RequestError, match=re.escape(way_out)):
        load_config([f"slurm.slurm_additional_parameters={given}", *words])


@pytest.mark.parametrize(
    "given", ["{gres: 'tmpdisk:10'}", "{mem-per-cpu: 4G}", "{cpus-per-gpu: 4}", "{exclusive: true, gpu-bind: none}"]
)
def test_a_further_option_that_no_setting_gives_is_passed_on(given) -> None:
    assert load_config([f"slurm.slurm_additional_parameters={given}"]).slurm.slurm_additional_parameters
