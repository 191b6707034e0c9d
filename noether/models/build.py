"""Which model was asked for: from `model.kind` and its options to an `nn.Module`."""

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from noether.dotted_path import load_object
from noether.errors import RequestError

REGISTRY = {
    "upt": "noether.models.upt.UPT",
}
"""The models that come with noether, by the short name that `model.kind` takes."""


def build_model(kind: str, **options: Any) -> nn.Module:
    """Make the model that `model.kind` names, with freshly drawn weights (from torch's global generator).

    Args:
        kind: a name of `REGISTRY`, or the dotted path of a user's own model: an `nn.Module` class, or a
            function that returns an `nn.Module`. Its `forward` takes a batch (dict of tensors) and returns
            predictions (dict of tensors).
        options: the keyword arguments of the model, the other entries of the `model` section.

    Raises:
        RequestError: no such model, not a model, an option that it does not have, or one that it lacks.
    """
    if kind not in REGISTRY and "." not in kind:
        nearest = difflib.get_close_matches(kind, REGISTRY, n=1, cutoff=0.0)[0]
        raise RequestError(
            f"no model is called {kind!r}",
            seen=f"model.kind={kind}",
            expected=f"one of {', '.join(sorted(REGISTRY))}, or the dotted path of your own model",
            fix=f"model.kind={nearest}",
        )
    factory = load_object(REGISTRY.get(kind, kind), setting="model.kind")
    if not callable(factory) or (inspect.isclass(factory) and not issubclass(factory, nn.Module)):
        raise _not_a_model(kind, factory)
    _check_options(kind, factory, options)
    model = factory(**options)
    if not isinstance(model, nn.Module):
        raise _not_a_model(kind, model)
    return model


def count_parameters(model: nn.Module) -> int:
    """The number of trained and frozen scalars in the model's parameters; buffers are not counted."""
    return sum(parameter.numel() for parameter in model.parameters())


def _check_options(kind: str, factory: Callable[..., Any], options: dict[str, Any]) -> None:
    parameters = _parameters(factory)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    named = {
        parameter.name: parameter.default is parameter.empty
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    for name in () if takes_any else options:
        if name not in named:
            nearest = difflib.get_close_matches(name, named, n=1)
            raise RequestError(
                f"model.kind={kind} has no option {name!r}",
                seen=f"model.{name}={options[name]}",
                expected=f"one of {', '.join(named)}" if named else "no options",
                fix=f"model.{nearest[0]}={options[name]}" if nearest else f"leave out model.{name}",
            )
    missing = [name for name, required in named.items() if required and name not in options]
    if missing:
        raise RequestError(
            f"model.kind={kind} needs {', '.join(missing)}",
            seen=f"options {', '.join(options) or 'none'}",
            expected="a value for every option without a default",
            fix=" ".join(f"model.{name}=..." for name in missing),
        )


def _parameters(factory: Callable[..., Any]) -> list[inspect.Parameter]:
    if getattr(factory, "__init__", None) is nn.Module.__init__:
        return []  # a class without a constructor of its own: torch's is declared as taking anything
    return list(inspect.signature(factory).parameters.values())


def _not_a_model(kind: str, found: Any) -> RequestError:
    return RequestError(
        f"model.kind={kind} is not a model",
        seen=f"{found!r}, of type {type(found).__name__}",
        expected="a class derived from torch.nn.Module, or a function that returns one",
        fix="model.kind=my_package.my_module.MyModel",
    )
