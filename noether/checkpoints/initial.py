"""Initialize a new run's weights from another run: copy the tensors that match, and report why the others do not."""

from fnmatch import fnmatchcase

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from noether.checkpoints.state import model_tensors
from noether.common.errors import RequestError
from noether.common.numbers import first_of
from noether.common.safe_open import StampedFile
from noether.common.suggest import nearest

SHOWN = 12


def begin_with(model: nn.Module, weights: StampedFile | None, patterns: tuple[str, ...]) -> list[str]:
    """Load the initial weights, if a file is given, and freeze parameters by `patterns`; return the report's lines."""
    lines = load_initial(model, weights) if weights else []
    if patterns:
        frozen = freeze(model, patterns)
        scalars = sum(dict(model.named_parameters())[name].numel() for name in frozen)
        lines.append(f"frozen: {len(frozen)} tensors of {scalars:,} parameters")
    return lines


def load_initial(model: nn.Module, file: StampedFile) -> list[str]:
    """Copy a file's tensors into a model where name and shape match; return the report's lines, the counts first.

    file: as `named_weights` returns it. RequestError: the file is unreadable or has changed, or no tensor matches.
    """
    path = file.path
    try:
        source = load_file(path)
        if not file.is_unchanged():
            raise OSError("it has changed since it was verified")
    except (OSError, SafetensorError) as error:
        raise RequestError("weights-unreadable", f"{path} cannot be read as weights", seen=str(error)[:200],
                           expected="a safetensors file") from None  # fmt: skip
    own = model_tensors(model)
    taken = [name for name, value in own.items() if name in source and source[name].shape == value.shape]
    reshaped = [name for name in own if name in source and name not in taken]
    left = {
        "not loaded (shapes differ)": [f"{n} {_shape(source[n])} → {_shape(own[n])}" for n in reshaped],
        "not loaded (missing from the source)": [name for name in own if name not in source],
        "in the source, not used": [name for name in source if name not in own],
    }
    if not taken:
        raise RequestError("weights-fit-nothing", f"no tensor in {path} fits the model",
                           seen=", ".join(list(source)[:4]), expected=", ".join(list(own)[:4]),
                           fix="initial_weights=null      (or use the model of that run)")  # fmt: skip
    with torch.no_grad():
        for name in taken:
            own[name].copy_(source[name])
    lines = (f"  {words}: {first_of(names, SHOWN)}" for words, names in left.items() if names)
    return [f"initial weights: {len(taken)} of {len(own)} tensors from {path}", *lines]


def freeze(model: nn.Module, patterns: tuple[str, ...]) -> list[str]:
    """Freeze the parameters whose names match any pattern (* and ? are wildcards); return these names.

    RequestError: a pattern matches no parameter.
    """
    names = [name for name, _ in model.named_parameters()]
    frozen: set[str] = set()
    for pattern in patterns:
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched:
            parts = sorted({name.partition(".")[0] for name in names})
            near = nearest(pattern.partition(".")[0].rstrip("*"), parts) or parts[0]
            raise RequestError("freeze-matches-nothing", f"trainer.freeze matches no parameter: {pattern}",
                               seen=f"trainer.freeze=[{','.join(patterns)}]",
                               expected=f"patterns of names that begin with {', '.join(parts)}",
                               fix=f"'trainer.freeze=[{near}.*]'")  # fmt: skip
        frozen.update(matched)
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    return [name for name in names if name in frozen]


def _shape(value: Tensor) -> str:
    return "×".join(map(str, value.shape)) or "()"
