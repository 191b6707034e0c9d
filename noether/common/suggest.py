"""Finds the known name that was probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches

# What other programs call the same thing. An entry counts where the name on the right is among those that are known.
OTHER_NAMES = {
    "dev": "validation",
    "eval": "evaluate",
    "test": "evaluate",
    "infer": "predict",
    "fit": "train",
    "last": "latest",
    "cuda": "gpu",
    "nvidia": "gpu",
    "metal": "mps",
    "bfloat16": "bf16",
    "bf16-mixed": "bf16",
    "bf16-true": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "16": "fp16",
    "16-mixed": "fp16",
    "16-true": "fp16",
    "fp32": "float32",
    "float": "float32",
    "32": "float32",
    "32-true": "float32",
    "no": "float32",
    "fp64": "float64",
    "double": "float64",
    "64": "float64",
    "64-true": "float64",
    "adam": "adamw",
}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that was probably meant, or None where none is alike.

    The same letters in another case, another program's word for it, the one known name that begins so, the most similar
    spelling, or the longest that this one begins with, in this order.
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
    # In a short name, one letter is a large part.
    cutoff = 0.6 if len(name) < 4 else 0.7
    matches = get_close_matches(lowered, [one.lower() for one in known], n=1, cutoff=cutoff)
    if matches:
        return next(one for one in known if one.lower() == matches[0])
    return max((one for one in known if len(one) >= 3 and lowered.startswith(one.lower())), key=len, default=None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `name, did you mean X?`, or `name; known: …` where nothing is alike."""
    known = sorted(known)
    match = nearest(name, known)
    return f"{name!r}, did you mean {match!r}?" if match else f"{name!r}; known: {', '.join(known)}"
