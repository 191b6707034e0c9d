"""Builds what a `kind` and its options name: one of ours by its short name, or the user's own by dotted path."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from noether.common.dotted_path import load_object
from noether.common.suggest import nearest
from noether.errors import RequestError


def find_component(
    section: str,
    kind: str,
    registry: Mapping[str, str],
    options: Mapping[str, Any],
    base: type | None = None,
    given: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Finds what a section's `kind` names, and checks that its options fit it; nothing is built.

    Args:
        section: the section's name, such as "model", for the errors.
        kind: a name of `registry`, or the dotted path of a class or function.
        registry: dotted paths by short name.
        options: the other entries of the section, handed over as keyword arguments.
        base: what the result must be an instance of; None: anything.
        given: keyword arguments that the program adds, such as a data set's `split`.

    Raises:
        RequestError: no such kind, or an option that it does not have or lacks.
    """
    if kind not in registry and "." not in kind:
        raise RequestError(
            f"no {section} is called {kind!r}",
            seen=f"{section}.kind={kind}",
            expected=f"one of {', '.join(sorted(registry))}, or the dotted path of your own",
            fix=f"{section}.kind={nearest(kind, registry) or next(iter(registry))}",
        )
    factory: Callable[..., Any] = load_object(registry.get(kind, kind), setting=f"{section}.kind")
    if not callable(factory) or (inspect.isclass(factory) and base is not None and not issubclass(factory, base)):
        raise _wrong_type(section, kind, factory, base)
    _check_options(section, kind, factory, options, given or {})
    return factory


def build_component(
    section: str,
    kind: str,
    registry: Mapping[str, str],
    options: Mapping[str, Any],
    base: type | None = None,
    given: Mapping[str, Any] | None = None,
) -> Any:
    """Builds what a section's `kind` names; the arguments are those of `find_component`.

    Raises:
        RequestError: no such kind, an option that it does not have or lacks, or not an instance of `base`.
    """
    factory = find_component(section, kind, registry, options, base, given)
    built = factory(**(given or {}), **options)
    if base is not None and not isinstance(built, base):
        raise _wrong_type(section, kind, built, base)
    return built


def _check_options(
    section: str, kind: str, factory: Callable[..., Any], options: Mapping[str, Any], given: Mapping[str, Any]
) -> None:
    parameters = _parameters(factory)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    named = {
        parameter.name: parameter.default is parameter.empty
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    for name in () if takes_any else given:
        if name not in named:
            raise RequestError(
                f"{section}.kind={kind} does not take {name!r}",
                seen=f"{kind}({', '.join(named)})",
                expected=f"{kind}({', '.join([*given, '...'])})",
                fix=f"give {kind} a parameter {name!r}",
            )
    own = {name: required for name, required in named.items() if name not in given}
    for name in () if takes_any else options:
        if name not in own:
            near = nearest(name, own)
            raise RequestError(
                f"{section}.kind={kind} has no option {name!r}",
                seen=f"{section}.{name}={options[name]}",
                expected=f"one of {', '.join(own)}" if own else "no options",
                fix=f"{section}.{near}={options[name]}" if near else f"leave out {section}.{name}",
            )
    missing = [name for name, required in own.items() if required and name not in options]
    if missing:
        raise RequestError(
            f"{section}.kind={kind} needs {', '.join(missing)}",
            seen=f"options {', '.join(options) or 'none'}",
            expected="a value for every option without a default",
            fix=" ".join(f"{section}.{name}=..." for name in missing),
        )


def _parameters(factory: Callable[..., Any]) -> list[inspect.Parameter]:
    if isinstance(factory, type):
        owner = next(base for base in factory.__mro__ if "__init__" in vars(base))
        if (owner.__module__, owner.__name__) == ("torch.nn.modules.module", "Module"):
            return []  # Without a constructor of its own: torch's is declared as taking anything.
    return list(inspect.signature(factory).parameters.values())


def _wrong_type(section: str, kind: str, found: Any, base: type | None) -> RequestError:
    wanted = f"{base.__module__}.{base.__qualname__}" if base is not None else "a class"
    return RequestError(
        f"{section}.kind={kind} is not a {section}",
        seen=f"{found!r}, of type {type(found).__name__}",
        expected=f"a class derived from {wanted}, or a function that returns one",
        fix=f"{section}.kind=my_package.my_module.MyClass",
    )
