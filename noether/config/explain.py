"""Explains a setting that the schema refuses: what was seen, what was expected, the line to change.

One table says what other programs call a setting; what else was meant is found in the schema.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from noether.common.errors import RequestError, SettingError
from noether.common.suggest import nearest
from noether.config.groups import our_groups
from noether.config.schema import SECTIONS_WITH_KIND, RunConfig
from noether.config.section import kind_of, sections_in

Kinds = Mapping[str, str]
"""The kind of each section that has one, where it is known."""
UNKNOWN: Kinds = MappingProxyType({})


class Suggestion(NamedTuple):
    """A setting to write instead, with its value in Hydra's grammar; `remark` is for the reader alone."""

    setting: str
    value: str = "{}"
    remark: str = ""

    def given(self, value: str) -> "Suggestion":
        """Return the suggestion for a value that was typed, which stands where {} is; of 1, updates is an update."""
        template = self.value.removesuffix("s") if value == "1" else self.value
        return self._replace(value=template.replace("{}", value))

    def __str__(self) -> str:
        """The word to write."""
        return shlex.quote(f"{self.setting}={self.value}") + (f"      ({self.remark})" if self.remark else "")


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
_NAMES_OF_KIND = ("name", "type", "class", "class_path", "_target_")
SECTIONS = ("", *(name for name, field in RunConfig.model_fields.items() if sections_in(field.annotation)))
"""The names of the sections of settings; "" is the top level."""
_EXPECTED = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "string": "a text", "path": "a text",
    "tuple": "a list in brackets", "list": "a list in brackets",
    **dict.fromkeys(("dict", "model"), "a group of settings, each with its name"),
    "greater_than": "a number above {gt}", "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}", "less_than_equal": "a number of at most {le}",
}  # fmt: skip
"""What is expected where the type of pydantic's error begins so; of others it says itself what is."""


def sections_at(key: str, kinds: Kinds = UNKNOWN) -> list[type[BaseModel]]:
    """Return what a dotted name may be, a section of each kind where the kind is not known; "" is the top level."""
    sections: list[type[BaseModel]] = [RunConfig]
    parts = key.split(".") if key else []
    while parts and sections:
        part = parts.pop(0)
        fields = [section.model_fields[part] for section in sections if part in section.model_fields]
        found = [one for field in fields for one in sections_in(field.annotation)]
        sections = [one for one in found if kind_of(one) == kinds.get(part)] or found
        if any("dict[" in str(field.annotation) for field in fields) and (not parts or not parts.pop(0)):
            return []  # A mapping, whose names are the user's.
    return sections


def fields_of(key: str, kinds: Kinds = UNKNOWN) -> list[FieldInfo]:
    """Return the schema's fields of a setting: none where it is unknown, several where the kind decides."""
    section, _, name = key.rpartition(".")
    return [one.model_fields[name] for one in sections_at(section, kinds) if name in one.model_fields]


def default_of(fields: Iterable[FieldInfo]) -> Any:
    """Return the first default of a setting's fields that can be typed, or None where they have none."""
    given = (one.get_default(call_default_factory=True, validated_data={}) for one in fields if not one.is_required())
    return next((one for one in given if one not in (None, {}, ()) and not isinstance(one, BaseModel)), None)


def settings(kinds: Kinds = UNKNOWN) -> dict[str, FieldInfo]:
    """Return every setting by its name, those of the top level first; of a section of unknown kind those of each."""
    found: dict[str, FieldInfo] = {}
    for section in SECTIONS:
        for one in sections_at(section, kinds):
            for name, field in one.model_fields.items():
                if name != "kind" and (section or name not in SECTIONS):
                    found.setdefault(f"{section}.{name}".lstrip("."), field)
    return found


def setting_meant(key: str, value: str, kinds: Kinds = UNKNOWN) -> Suggestion | None:
    """Return what another program calls `key`, or the same setting of another section; None where there is neither."""
    section, _, name = key.rpartition(".")
    name = name.replace("-", "_")
    if name in _NAMES_OF_KIND and any(kind_of(one) is not None for one in sections_at(section)):
        return Suggestion(f"{section}.kind", value)
    there, other = settings(kinds), OTHER_NAMES.get(key) or OTHER_NAMES.get(name)
    if other is not None and (other.setting in there or other.setting in SECTIONS):
        # A name such as `root` or `time` says something else in a section that is not about that.
        about = ("trainer", other.setting.rpartition(".")[0])
        if key in OTHER_NAMES or not section or section in about or section not in SECTIONS:
            return other.given(value)
    found = [one for one in there if one.rpartition(".")[2] == name and one.rpartition(".")[0] != section]
    if not found:
        return None
    first, *others = found
    value = nearest(value, [one for one in get_args(there[first].annotation) if isinstance(one, str)]) or value
    return Suggestion(first, value, ", ".join(f"or {other}={value}" for other in others))


def refusal_of(error: ValidationError, settings: Mapping[str, Any]) -> RequestError:
    """Return one error for all that the schema refuses: the first in full, and a line for each other one."""
    kinds = {name: str(part["kind"]) for name, part in settings.items() if isinstance(part, dict) and "kind" in part}
    refused: dict[str, RequestError] = {}
    for problem in error.errors(include_url=False):
        key = _key_of(problem, settings)
        if key not in refused:  # A union (int, auto or null) reports a problem for each member; the first is enough.
            refused[key] = _explained(problem, key, kinds)
    first, *others = refused.values()
    more = [other.summary + (f"   → {other.fix}" if other.fix else "") for other in others]
    fix = "\n".join([first.fix, f"and {len(others)} more:", *more]).lstrip() if others else first.fix
    return RequestError(**first.parts | {"fix": fix})


def _key_of(problem: Any, settings: Mapping[str, Any]) -> str:
    """Return the key as it is written in files; `loc` has the section's tag ("upt") and a union's member as well."""
    place, within = list(problem["loc"]), settings
    if place and place[0] in SECTIONS_WITH_KIND:
        del place[1:2]
    path = []
    for part in place:
        is_missing = problem["type"] == "missing" and part == place[-1]
        if is_missing or (isinstance(within, Mapping) and part in within):
            path.append(str(part))
            within = {} if is_missing else within[part]
    return ".".join(path)


def _explained(problem: Any, key: str, kinds: Kinds) -> RequestError:
    """Return the refusal of one setting."""
    kind, value, default = problem["type"], problem["input"], default_of(fields_of(key, kinds))
    if kind == "extra_forbidden":
        return _unknown_key(key, value, kinds)
    if kind == "value_error":
        return _refused_by_section(problem["ctx"]["error"], key, value)
    if kind == "missing":
        options = our_groups().get(key, ["VALUE"])
        expected = f"a value for {key}" if options == ["VALUE"] else f"one of {', '.join(options)}"
        fix = f"{key}={'default' if 'default' in options else options[0]}"
        return RequestError("setting-missing", f"{key} is not set", expected=expected, fix=fix)
    shown, seen = _short(value), f"{key}={_short(value)} ({type(value).__name__})"
    wanted, said = _EXPECTED.get(kind) or _EXPECTED.get(kind.partition("_")[0]), problem["msg"]
    expected = wanted.format_map(problem.get("ctx", {})) if wanted else said.removeprefix("Input should be ")
    fix = f"leave {key} out" if default is None else f"{key}={shlex.quote(as_override(default))}"
    if kind in ("string_type", "path_type") and is_number(value):
        return RequestError(
            "invalid-value",
            f"{key} cannot be {shown}",
            seen=seen,
            expected="text in quotes, because YAML reads text that looks like a number as a number",
            fix=f'{key.rpartition(".")[2]}: "{shown}"      (quoted, in the file that sets it)',
        )
    if kind == "literal_error":
        known = re.findall(r"'([^']+)'", problem["ctx"]["expected"])
        seen, expected = f"{key}={shown}", f"one of {', '.join(known)}"
        fix = f"{key}={nearest(str(value), known) or (default if default in known else known[0])}"
    elif kind == "tuple_type" and default is None and isinstance(value, str):
        fix = f"{key}={shlex.quote(f'[{as_override(value)}]')}"
    return RequestError("invalid-value", f"{key} cannot be {shown}", seen=seen, expected=expected, fix=fix)


def _unknown_key(key: str, value: Any, kinds: Kinds) -> RequestError:
    typed = key
    while isinstance(value, dict) and value:  # Of a whole section, its first setting.
        name, value = next(iter(value.items()))
        typed = f"{typed}.{name}"
    given, rest = as_override(value), typed.removeprefix(key)
    named = _spelled(key, kinds) + rest
    meant = Suggestion(named, given) if rest and _is_setting(named, kinds) else None
    meant = meant or setting_meant(named if rest else typed, given, kinds)
    group = setting_meant(key, "", kinds) if rest and not meant else None  # Which another section has.
    if group and _is_setting(group.setting + rest, kinds):
        meant = Suggestion(group.setting + rest, given)
    spelled = _spelled(typed, kinds)
    if not meant and _is_setting(spelled, kinds):
        meant = Suggestion(spelled, given)
    parent = key.rpartition(".")[0]
    known = ", ".join(dict.fromkeys(name for one in sections_at(parent, kinds) for name in one.model_fields))
    return RequestError(
        "unknown-key",
        f"unknown key {key!r}" + (f", did you mean {meant.setting.removesuffix(rest)!r}?" if meant else ""),
        seen=f"{typed}={_short(value)}",
        expected="" if meant else f"a key of {parent or 'the configuration'}: {known}",
        fix=str(meant) if meant else f"leave {typed} out",
    )


def _is_setting(name: str, kinds: Kinds) -> bool:
    """Return whether there is such a setting, of a section or of a mapping with names of the user's."""
    within = name.rpartition(".")[0]
    return bool(fields_of(name, kinds) or (fields_of(within, kinds) and not sections_at(within, kinds)))


def _spelled(key: str, kinds: Kinds) -> str:
    """Return a setting's name with each part as the names of its section are spelled."""
    path = ""
    for part in key.split("."):
        known = [name for section in sections_at(path, kinds) for name in section.model_fields]
        path = f"{path}.{part if part in known else nearest(part, known) or part}".lstrip(".")
    return path


def _refused_by_section(error: ValueError, key: str, value: Any) -> RequestError:
    """Return the refusal of a check of the schema itself, which says what is wrong with which setting of a section."""
    if not isinstance(error, SettingError):  # Of pydantic's own.
        error = SettingError("setting-refused", "", str(error))
    name, given, problem = error.setting, error.given, error.problem
    full = key if not name or key.rpartition(".")[2] == name else f"{key}.{name}".lstrip(".")
    shown = f"{full}: {problem}" if full and not name else f"{full}{given}{problem}"
    if not name and not isinstance(value, (dict, BaseModel)):
        given = f"={_short(value)}"
    fix = shlex.quote(f"{full}={error.instead}") if error.instead else error.fix or f"leave {full} out"
    seen = error.seen or (f"{full}{given}" if given else "")
    return RequestError(error.code, shown, seen=seen, expected=error.expected, fix=fix)


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str) and (not value or " " in value) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def as_override(value: Any) -> str:
    """Return a value as Hydra's grammar writes it; the shell may want it quoted."""
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(str, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if not isinstance(value, str):
        return str(value)
    from noether.config.sweep import override_value  # Hydra takes longer to import than a wrong flag to refuse.

    return override_value(value)


def is_number(value: Any) -> bool:
    """Return whether a value is an integer or a float, but not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
