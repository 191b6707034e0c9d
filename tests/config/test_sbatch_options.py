"""Which further options of sbatch are refused, for the setting that gives them, and which are passed on."""

import re

import pytest

from noether.config.compose import load_config
from noether.errors import RequestError

CONTRADICTING = {
    "gpus-by-gres": ("{gres: gpu:4}", [], "slurm.gpus_per_node=4      (in place of "),
    "gpus-of-a-type-by-gres": ("{gres: gpu:a100:4}", [], "slurm.gpus_per_node=a100:4 "),
    "one-gpu-by-gres": ("{gres: gpu}", [], "slurm.gpus_per_node=1 "),
    "gpus-and-more-by-gres": (
        "{gres: 'gpu:2,tmpdisk:10'}", [], "slurm.gpus_per_node=2 slurm.slurm_additional_parameters.gres=tmpdisk:10"
    ),
    "gpus-of-the-whole-job": ("{gpus: 8}", ["slurm.nodes=2"], "slurm.gpus_per_node=4"),
    "gpus-that-nodes-cannot-share": ("{gpus: 7}", ["slurm.nodes=2"], "slurm.gpus_per_node=VALUE"),
    "gpus-of-each-task": ("{gpus_per_task: 1}", ["slurm.tasks_per_node=4"], "slurm.gpus_per_node=4"),
    "gpus-of-each-task-by-tres": ("{tres-per-task: 'gres/gpu:1'}", ["slurm.tasks_per_node=2"], "slurm.gpus_per_node=2"),
    "nodes": ("{nodes: 2}", [], "slurm.nodes=2"),
    "nodes-by-a-file": ("{nodefile: hosts}", [], "slurm.nodelist=VALUE"),
    "tasks": ("{ntasks: 8}", [], "slurm.tasks_per_node=VALUE"),
    "tasks-by-another-name": ("{tasks_per_node: 8}", [], "slurm.tasks_per_node=8"),
    "tasks-by-gpus": ("{ntasks-per-gpu: 1}", [], "slurm.tasks_per_node=VALUE"),
    "time": ("{time: 60}", [], "slurm.timeout_min=VALUE"),
    "signal": ("{signal: USR1@90}", [], "slurm.slurm_signal_delay_s=VALUE"),
    "output": ("{output: x.out}", [], "slurm.folder=VALUE"),
    "array": ("{array: 0-3}", [], "noether submit -m KEY=VALUE,VALUE"),
    "no-requeue": ("{no-requeue: true}", [], "slurm.max_requeues=0"),
    "cut-short-as-sbatch-takes-it": ("{no_req: true}", [], "slurm.max_requeues=0"),
    "open-mode": ("{open_mode: truncate}", [], "leave slurm.slurm_additional_parameters.open_mode out"),
    "name": ("{job-name: x}", [], "run_id=NAME"),
    "folder": ("{chdir: /tmp}", [], "cd FOLDER"),
    "sbatch-that-waits": ("{wait: true}", [], "noether logs RUN -f"),
    "sbatch-that-only-tests": ("{test-only: true}", [], "noether submit --dry-run"),
    "memory-twice": ("{mem-per-cpu: 4G}", ["slurm.mem_gb=8"], "slurm.mem_gb=null"),
    "cpus-twice": ("{cpus-per-gpu: 4}", ["slurm.cpus_per_task=8"], "slurm.cpus_per_task=null"),
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
