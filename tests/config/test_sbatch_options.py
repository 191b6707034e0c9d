"""Which further options of sbatch are refused, for the setting that gives them, and which are passed on."""

import re

import pytest

from noether.config.compose import load_config
from noether.errors import RequestError

CONTRADICTING = {
    "gpus-by-gres": ("{gres: gpu:4}", [], "slurm.gpus_per_node=4      (in place of "),
    "gpus-of-the-whole-job": ("{gpus: 8}", ["slurm.nodes=2"], "slurm.gpus_per_node=4"),
    "gpus-of-each-task": ("{gpus_per_task: 1}", ["slurm.tasks_per_node=4"], "slurm.gpus_per_node=4"),
    "gpus-of-each-task-by-tres": ("{tres-per-task: 'gres/gpu:1'}", ["slurm.tasks_per_node=2"], "slurm.gpus_per_node=2"),
    "nodes": ("{nodes: 2}", [], "slurm.nodes=2"),
    "array": ("{array: 0-3}", [], "noether submit -m KEY=VALUE,VALUE"),
    "cut-short-as-sbatch-takes-it": ("{no_req: true}", [], "slurm.max_requeues=0"),
    "memory-twice": ("{mem-per-cpu: 4G}", ["slurm.mem_gb=8"], "slurm.mem_gb=null"),
    "short-option": ("{t: 60}", [], "write mail-type: END"),
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
