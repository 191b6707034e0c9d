"""Finds the known name that was probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches

# What other programs call the same thing. An entry counts where the name on the right is among those that are known.
OTHER_NAMES = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "batch_size": "effective_batch_size",
    "epochs": "max_epochs",
    "steps": "max_updates",
    "max_steps": "max_updates",
    "gpus": "devices",
    "gpu_ids": "devices",
    "name": "run_id",
    "output": "output_path",
    "output_dir": "output_path",
    "dev": "validation",
    "eval": "evaluate",
    "test": "evaluate",
    "infer": "predict",
    "fit": "train",
    "cuda": "gpu",
    "nvidia": "gpu",
    "metal": "mps",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp32": "float32",
    "float": "float32",
    "fp64": "float64",
    "double": "float64",
    "adam": "adamw",
}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that was probably meant, or None where none is alike.

    The same letters in another case, another program's word for it, the one known name that begins so, or the most
    similar spelling, in this order.
    """
    known = list(known)
    lowered = name.lower()
    for candidate in (lowered, OTHER_NAMES.get(lowered)):
        same = [one for one in known if one.lower() == candidate]
        if same:
            return same[0]
    beginnings = [one for one in known if len(lowered) >= 3 and one.lower().startswith(lowered)]
    if len(beginnings) == 1:
        return beginnings[0]
    matches = get_close_matches(lowered, [one.lower() for one in known], n=1, cutoff=0.6)
    return next((one for one in known if matches and one.lower() == matches[0]), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `name, did you mean X?`, or `name; known: …` where nothing is alike."""
    known = sorted(known)
    match = nearest(name, known)
    return f"{name!r}, did you mean {match!r}?" if match else f"{name!r}; known: {', '.join(known)}"
