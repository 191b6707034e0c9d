"""What other programs call a setting, and where a setting is that was typed in another section."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from noether.common.suggest import nearest
from noether.config.schema import RunConfig
from noether.config.section import kind_of, sections_in


class Suggestion(NamedTuple):
    """A setting to write instead, with its value in Hydra's grammar; `remark` is for the reader alone."""

    setting: str
    value: str = "{}"
    remark: str = ""

    def given(self, value: str) -> "Suggestion":
        """Returns the suggestion for a value that was typed, which stands where {} is; of 1, updates is an update."""
        template = self.value.removesuffix("s") if value == "1" else self.value
        return self._replace(value=template.replace("{}", value))

    @property
    def override(self) -> str:
        """The word that noether reads."""
        return f"{self.setting}={self.value}"

    def __str__(self) -> str:
        return shlex.quote(self.override) + (f"      ({self.remark})" if self.remark else "")


# As Lightning, Hugging Face's Trainer, timm, Hydra and argparse scripts write them.
_ALL_RANKS, _AT_ONCE = "samples per update over all ranks", "samples at once; the rest of an update accumulates"
_UNDER_SLURM = "noether submit; without a scheduler: nodes, node_rank and master_addr"
_NAMES = {
    Suggestion("optimizer.learning_rate"): "lr base_lr max_lr",
    Suggestion("schedule.final_learning_rate"): "min_lr eta_min",
    Suggestion("optimizer.weight_decay"): "wd",
    Suggestion("optimizer.eps"): "adam_epsilon",
    Suggestion("optimizer"): "optim opt",
    Suggestion("schedule"): "sched lr_scheduler lr_scheduler_type",
    Suggestion("schedule.warmup", "{} updates"): "warmup_steps num_warmup_steps",
    Suggestion("schedule.warmup", "{} epochs"): "warmup_epochs",
    Suggestion("trainer.effective_batch_size"): "batch_size global_batch_size train_batch_size",
    Suggestion("trainer.effective_batch_size", remark=_ALL_RANKS): "per_device_train_batch_size",
    Suggestion("trainer.evaluation_batch_size"): "per_device_eval_batch_size eval_batch_size",
    Suggestion("trainer.max_batch_size"): "micro_batch_size",
    Suggestion("trainer.max_batch_size", "1", _AT_ONCE): "accumulate_grad_batches gradient_accumulation_steps",
    Suggestion("trainer.max_epochs"): "epochs num_epochs n_epochs num_train_epochs",
    Suggestion("trainer.max_updates"): "steps max_steps num_steps iterations max_iters",
    Suggestion("trainer.precision", "bf16"): "amp bf16",
    Suggestion("trainer.precision"): "mixed_precision",
    Suggestion("trainer.precision", "fp16"): "fp16",
    Suggestion("trainer.clip_gradient_norm"): "grad_clip clip_grad max_grad_norm gradient_clip_val",
    Suggestion("trainer.ema_decay"): "ema",
    Suggestion("trainer.compile"): "torch_compile",
    Suggestion("trainer.recompute"): "gradient_checkpointing",
    Suggestion("trainer.stop_after"): "early_stopping_patience patience",
    Suggestion("trainer.select_by"): "monitor metric_for_best_model",
    Suggestion("trainer.keep_checkpoints"): "save_total_limit save_top_k",
    Suggestion("trainer.log_every", "{} updates"): "log_every_n_steps logging_steps log_interval",
    Suggestion("trainer.evaluate_every", "{} updates"): "eval_every eval_steps eval_interval val_check_interval",
    Suggestion("trainer.evaluate_every", "{} epochs"): "check_val_every_n_epoch",
    Suggestion("trainer.checkpoint_every", "{} updates"): "save_every save_steps save_interval checkpoint_interval",
    Suggestion("trainer.timeout_min"): "max_time",
    Suggestion("devices"): "gpus gpu_ids num_gpus",
    Suggestion("accelerator"): "device",
    Suggestion("slurm.nodes", remark=_UNDER_SLURM): "num_nodes nnodes",
    Suggestion("slurm.slurm_partition"): "partition",
    Suggestion("slurm.slurm_account"): "account",
    Suggestion("slurm.slurm_qos"): "qos",
    Suggestion("slurm.timeout_min"): "time",
    Suggestion("slurm.mem_gb"): "mem",
    Suggestion("dataset"): "data",
    Suggestion("dataset_root"): "data_root data_dir data_path root dataset.root dataset.path",
    Suggestion("num_workers"): "dataloader_num_workers workers",
    Suggestion("seed"): "random_seed manual_seed",
    Suggestion("run_id"): "name run_name exp_name",
    Suggestion("output_path"): "output output_dir out_dir save_dir default_root_dir",
    Suggestion("resume"): "ckpt_path resume_from_checkpoint",
    Suggestion("initial_weights"): "pretrained init_from",
    Suggestion("tracker"): "logger report_to",
    Suggestion("tracker", "wandb"): "wandb",
    Suggestion("tracker", "mlflow"): "mlflow",
    Suggestion("model.dim"): "hidden_dim hidden_size embed_dim d_model width",
    Suggestion("model.heads"): "n_heads num_heads",
    Suggestion("model.depth"): "n_layers num_layers layers",
}
OTHER_NAMES = {name: meant for meant, names in _NAMES.items() for name in names.split()}
"""What is meant by each setting of other programs, where {} is the value that was typed."""

# What chooses a component elsewhere; here it is `kind`, in the same section.
NAMES_OF_KIND = ("name", "type", "class", "class_path", "_target_")


def setting_meant(
    key: str, value: str, known: Sequence[str] = (), kinds: Mapping[str, str] = MappingProxyType({})
) -> Suggestion | None:
    """Returns what to write for a setting that is unknown under `key`, or None where no setting is like it.

    Args:
        key: the setting as it was typed, with its section.
        value: its value, as it was typed.
        known: the settings of the section that was typed.
        kinds: the kind of each section that has one, where it is known.
    """
    section, _, name = key.rpartition(".")
    name = name.replace("-", "_")
    if name in NAMES_OF_KIND and "kind" in known and section:
        return Suggestion(f"{section}.kind", value)
    if key in OTHER_NAMES:
        return OTHER_NAMES[key].given(value)
    there, other = settings(kinds), OTHER_NAMES.get(name)
    if other is not None:
        # A name such as `root` or `time` says something else in a section that is not about that.
        fits = section in ("", "trainer", other.setting.rpartition(".")[0]) or section not in SECTIONS
        if fits and (other.setting in there or other.setting in SECTIONS):
            return other.given(value)
    found = [one for one in there if one.rpartition(".")[2] == name and one.rpartition(".")[0] != section]
    if not found:
        return None
    first, *others = found
    choices = [choice for choice in get_args(there[first].annotation) if isinstance(choice, str)]
    value = nearest(value, choices) or value
    return Suggestion(first, value, ", ".join(f"or {other}={value}" for other in others))


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


def default_of(fields: Iterable[FieldInfo]) -> Any:
    """Returns the first default of a setting's fields, or None where they have none."""
    given = (one.get_default(call_default_factory=True, validated_data={}) for one in fields if not one.is_required())
    return next((default for default in given if default is not None), None)


SECTIONS = {"", *(name for name, field in RunConfig.model_fields.items() if sections_in(field.annotation))}
"""The names of the sections of settings; "" is the top level."""
