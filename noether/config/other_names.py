"""What other programs call a setting, and where a setting is that was typed in another section."""

import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from noether.common.suggest import nearest
from noether.config.schema import RunConfig
from noether.config.section import kind_of, sections_in

# As Lightning, Hugging Face's Trainer, timm, Hydra and argparse scripts write them. {} is the value that was typed.
# After six spaces comes a remark, which is not part of the line to type.
OTHER_NAMES = {
    "lr": "optimizer.learning_rate={}",
    "base_lr": "optimizer.learning_rate={}",
    "max_lr": "optimizer.learning_rate={}",
    "min_lr": "schedule.final_learning_rate={}",
    "eta_min": "schedule.final_learning_rate={}",
    "wd": "optimizer.weight_decay={}",
    "adam_epsilon": "optimizer.eps={}",
    "optim": "optimizer={}",
    "opt": "optimizer={}",
    "sched": "schedule={}",
    "lr_scheduler": "schedule={}",
    "lr_scheduler_type": "schedule={}",
    "warmup_steps": "schedule.warmup={} updates",
    "num_warmup_steps": "schedule.warmup={} updates",
    "warmup_epochs": "schedule.warmup={} epochs",
    "batch_size": "trainer.effective_batch_size={}",
    "global_batch_size": "trainer.effective_batch_size={}",
    "train_batch_size": "trainer.effective_batch_size={}",
    "per_device_train_batch_size": "trainer.effective_batch_size={}      (samples per update over all ranks)",
    "per_device_eval_batch_size": "trainer.evaluation_batch_size={}",
    "eval_batch_size": "trainer.evaluation_batch_size={}",
    "micro_batch_size": "trainer.max_batch_size={}",
    "accumulate_grad_batches": "trainer.max_batch_size=1      (samples at once; the rest of an update accumulates)",
    "gradient_accumulation_steps": "trainer.max_batch_size=1      (samples at once; the rest of an update accumulates)",
    "epochs": "trainer.max_epochs={}",
    "num_epochs": "trainer.max_epochs={}",
    "n_epochs": "trainer.max_epochs={}",
    "num_train_epochs": "trainer.max_epochs={}",
    "steps": "trainer.max_updates={}",
    "max_steps": "trainer.max_updates={}",
    "num_steps": "trainer.max_updates={}",
    "iterations": "trainer.max_updates={}",
    "max_iters": "trainer.max_updates={}",
    "amp": "trainer.precision=bf16",
    "mixed_precision": "trainer.precision={}",
    "fp16": "trainer.precision=fp16",
    "bf16": "trainer.precision=bf16",
    "grad_clip": "trainer.clip_gradient_norm={}",
    "clip_grad": "trainer.clip_gradient_norm={}",
    "max_grad_norm": "trainer.clip_gradient_norm={}",
    "gradient_clip_val": "trainer.clip_gradient_norm={}",
    "ema": "trainer.ema_decay={}",
    "torch_compile": "trainer.compile={}",
    "gradient_checkpointing": "trainer.recompute={}",
    "early_stopping_patience": "trainer.stop_after={}",
    "patience": "trainer.stop_after={}",
    "monitor": "trainer.select_by={}",
    "metric_for_best_model": "trainer.select_by={}",
    "save_total_limit": "trainer.keep_checkpoints={}",
    "save_top_k": "trainer.keep_checkpoints={}",
    "log_every_n_steps": "trainer.log_every={} updates",
    "logging_steps": "trainer.log_every={} updates",
    "log_interval": "trainer.log_every={} updates",
    "eval_every": "trainer.evaluate_every={} updates",
    "eval_steps": "trainer.evaluate_every={} updates",
    "eval_interval": "trainer.evaluate_every={} updates",
    "val_check_interval": "trainer.evaluate_every={} updates",
    "check_val_every_n_epoch": "trainer.evaluate_every={} epochs",
    "save_every": "trainer.checkpoint_every={} updates",
    "save_steps": "trainer.checkpoint_every={} updates",
    "save_interval": "trainer.checkpoint_every={} updates",
    "checkpoint_interval": "trainer.checkpoint_every={} updates",
    "max_time": "trainer.timeout_min={}",
    "gpus": "devices={}",
    "gpu_ids": "devices={}",
    "num_gpus": "devices={}",
    "device": "accelerator={}",
    "num_nodes": "slurm.nodes={}      (noether submit; without a scheduler: nodes, node_rank and master_addr)",
    "nnodes": "slurm.nodes={}      (noether submit; without a scheduler: nodes, node_rank and master_addr)",
    "partition": "slurm.slurm_partition={}",
    "account": "slurm.slurm_account={}",
    "qos": "slurm.slurm_qos={}",
    "time": "slurm.timeout_min={}",
    "mem": "slurm.mem_gb={}",
    "data": "dataset={}",
    "data_root": "dataset_root={}",
    "data_dir": "dataset_root={}",
    "data_path": "dataset_root={}",
    "root": "dataset_root={}",
    "dataset.root": "dataset_root={}",
    "dataset.path": "dataset_root={}",
    "dataloader_num_workers": "num_workers={}",
    "workers": "num_workers={}",
    "random_seed": "seed={}",
    "manual_seed": "seed={}",
    "name": "run_id={}",
    "run_name": "run_id={}",
    "exp_name": "run_id={}",
    "output": "output_path={}",
    "output_dir": "output_path={}",
    "out_dir": "output_path={}",
    "save_dir": "output_path={}",
    "default_root_dir": "output_path={}",
    "ckpt_path": "resume={}",
    "resume_from_checkpoint": "resume={}",
    "pretrained": "initial_weights={}",
    "init_from": "initial_weights={}",
    "logger": "tracker={}",
    "report_to": "tracker={}",
    "wandb": "tracker=wandb",
    "mlflow": "tracker=mlflow",
    "hidden_dim": "model.dim={}",
    "hidden_size": "model.dim={}",
    "embed_dim": "model.dim={}",
    "d_model": "model.dim={}",
    "width": "model.dim={}",
    "n_heads": "model.heads={}",
    "num_heads": "model.heads={}",
    "n_layers": "model.depth={}",
    "num_layers": "model.depth={}",
    "layers": "model.depth={}",
}

# What chooses a component elsewhere; here it is `kind`, in the same section.
NAMES_OF_KIND = ("name", "type", "class", "class_path", "_target_")


def setting_meant(
    key: str, value: str, known: Sequence[str] = (), kinds: Mapping[str, str] = MappingProxyType({})
) -> str | None:
    """Returns the line to type for a setting that is unknown under `key`, or None where no setting is like it.

    Args:
        key: the setting as it was typed, with its section.
        value: its value, as it was typed.
        known: the settings of the section that was typed.
        kinds: the kind of each section that has one, where it is known.
    """
    section, _, name = key.rpartition(".")
    name = name.replace("-", "_")
    if name in NAMES_OF_KIND and "kind" in known and section:
        return f"{section}.kind={value}"
    there = settings(kinds)
    if key in OTHER_NAMES:
        return _line(OTHER_NAMES[key], value)
    other = OTHER_NAMES.get(name)
    if other is not None:
        target = other.partition("=")[0]
        # A name such as `root` or `time` says something else in a section that is not about that.
        fits = section in ("", "trainer", target.rpartition(".")[0]) or section not in SECTIONS
        if fits and (target in there or target in SECTIONS):
            return _line(other, value)
    found = [one for one in there if one.rpartition(".")[2] == name and one.rpartition(".")[0] != section]
    if not found:
        return None
    first, *others = found
    choices = [choice for choice in get_args(there[first].annotation) if isinstance(choice, str)]
    value = nearest(value, choices) or value
    remark = f"      (or {', or '.join(f'{other}={value}' for other in others)})" if others else ""
    return _line(f"{first}={{}}{remark}", value)


def settings(kinds: Mapping[str, str] = MappingProxyType({})) -> dict[str, FieldInfo]:
    """Returns every setting by its name, those of the top level first.

    `kinds` has the kind of each section that has one; of a section that is not in it, those of every kind.
    """
    found = {name: field for name, field in RunConfig.model_fields.items() if not sections_in(field.annotation)}
    for name, field in RunConfig.model_fields.items():
        sections = sections_in(field.annotation)
        chosen = [section for section in sections if kind_of(section) == kinds.get(name)]
        for section in chosen or sections:
            found |= {
                f"{name}.{key}": inner
                for key, inner in section.model_fields.items()
                if key != "kind" and f"{name}.{key}" not in found
            }
    return found


def fields_of(key: str) -> list[FieldInfo]:
    """Returns the schema's fields of a setting: none where it is unknown, several where the kind decides."""
    *parents, name = key.split(".")
    sections: list[type[BaseModel]] = [RunConfig]
    for part in parents:
        fields = [section.model_fields[part] for section in sections if part in section.model_fields]
        sections = [section for field in fields for section in sections_in(field.annotation)]
    return [section.model_fields[name] for section in sections if name in section.model_fields]


def default_of(key: str) -> Any:
    """Returns the default of a setting by the schema, or None where it has none."""
    for field in fields_of(key):
        if not field.is_required():
            return field.get_default(call_default_factory=True, validated_data={})
    return None


def _line(template: str, value: str) -> str:
    line, spaces, remark = template.partition("      ")
    if value == "1" and line.endswith(("updates", "epochs")):
        line = line[:-1]
    return shlex.quote(line.replace("{}", value)) + spaces + remark.replace("{}", value)


SECTIONS = {"", *(name for name, field in RunConfig.model_fields.items() if sections_in(field.annotation))}
"""The names of the sections of settings; "" is the top level."""
