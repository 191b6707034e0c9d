"""Build the object that a section describes: `kind` is a built-in's short name or a dotted path; options follow."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from noether.common.dotted_path import defined_in, load_object
from noether.common.errors import RequestError
from noether.common.suggest import nearest


@dataclass(frozen=True)
class Component:
    """The object named by a section's `kind`, with its options.

    section: the section's name, such as "model", for the errors.
    kind: a name in `registry`, or the dotted path of a class or function.
    options: the other entries of the section, passed as keyword arguments.
    registry: {short name: dotted path} of the built-in kinds.
    base: the class that the result must be an instance of; None: any.
    given: keyword arguments that the program adds, such as a data set's `split`.
    offered: keyword arguments added only if the class or function accepts them, such as a model's `layout`.
    calls: {method that a run calls: names of its arguments}.
    needed: {method that the class must define: its result, then methods that may be defined instead}.
    """

    section: str
    kind: str
    options: Mapping[str, Any]
    registry: Mapping[str, str] = field(default_factory=dict)
    base: type | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    offered: Mapping[str, Any] = field(default_factory=dict)
    calls: Mapping[str, Sequence[str]] = field(default_factory=dict)
    needed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def find(self) -> Callable[..., Any]:
        """Return the class or function after checking its methods and options, without building anything.

        RequestError: no such kind, an unknown or missing option, or a method that a run cannot call.
        """
        section, kind, registry, base = self.section, self.kind, self.registry, self.base
        if kind not in registry and "." not in kind:
            raise RequestError("unknown-component", f"no {section} is called {kind!r}", seen=f"{section}.kind={kind}",
                               expected=f"one of {', '.join(sorted(registry))}, or the dotted path of your class",
                               fix=f"{section}.kind={nearest(kind, registry) or next(iter(registry))}")  # fmt: skip
        factory: Callable[..., Any] = load_object(kind, f"{section}.kind", registry, base)
        if not callable(factory) or (inspect.isclass(factory) and base is not None and not issubclass(factory, base)):
            raise self._wrong_type(factory)
        self._check_options(_parameters(factory))
        if isinstance(factory, type):
            self._check_methods(factory)
        return factory

    def build(self) -> Any:
        """Call the class or function with the options and return the result.

        RequestError: see `find`; or the result is not an instance of `base`.
        """
        factory = self.find()
        named = {parameter.name for parameter in _parameters(factory)} if self.offered else set()
        taken = {name: value for name, value in self.offered.items() if name in named}
        built = factory(**self.given, **taken, **self.options)
        if self.base is not None and not isinstance(built, self.base):
            raise self._wrong_type(built)
        if not isinstance(factory, type):
            self._check_methods(type(built))
        return built

    def _check_methods(self, own: type) -> None:
        if self.kind in self.registry:
            return
        for name, (does, *others) in self.needed.items():
            if all(getattr(own, one, None) in (None, getattr(self.base, one, None)) for one in (name, *others)):
                define = f"def {name}({', '.join(['self', *self.calls[name]])})"
                raise RequestError("own-method-missing", f"{own.__name__} has no {name}",
                                   seen=f"{self.section}.kind={self.kind}, a class without it",
                                   expected=f"{define}: {does}", fix=f"add {define} to {own.__name__}")  # fmt: skip
        check_arguments(own, self.calls)

    def _check_options(self, parameters: list[inspect.Parameter]) -> None:
        section, kind, options, given = self.section, self.kind, self.options, self.given
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        named = {
            parameter.name: parameter.default is parameter.empty
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        }
        for name in () if takes_any else given:
            if name not in named:
                raise RequestError("component-argument-reserved", f"{section}.kind={kind} does not take {name!r}",
                                   seen=f"{kind}({', '.join(named)})", expected=f"{kind}({', '.join([*given, '...'])})",
                                   fix=f"give {kind} a parameter {name!r}")  # fmt: skip
        own = {name: required for name, required in named.items() if name not in (*given, *self.offered)}
        for name in () if takes_any else options:
            if name not in own:
                near = nearest(name, own)
                raise RequestError(
                    "component-option-unknown", f"{section}.kind={kind} has no option {name!r}",
                    seen=f"{section}.{name}={options[name]}",
                    expected=f"one of {', '.join(own)}" if own else "no options",
                    fix=f"{section}.{near}={options[name]}" if near else f"leave out {section}.{name}",
                )  # fmt: skip
        if missing := [name for name, required in own.items() if required and name not in options]:
            raise RequestError("component-option-missing", f"{section}.kind={kind} needs {', '.join(missing)}",
                               seen=f"options {', '.join(options) or 'none'}",
                               expected="a value for every option without a default",
                               fix=" ".join(f"{section}.{name}=..." for name in missing))  # fmt: skip

    def _wrong_type(self, found: Any) -> RequestError:
        wanted = f"{self.base.__module__}.{self.base.__qualname__}" if self.base is not None else "a class"
        return RequestError(
            "component-wrong-class",
            f"{self.section}.kind={self.kind} is not {'an' if self.section == 'optimizer' else 'a'} {self.section}",
            seen=f"{found!r}, of type {type(found).__name__}",
            expected=f"a class derived from {wanted}, or a function that returns one",
            fix=self._one_of_that_module() or f"derive {self.kind} from {wanted}",
        )

    def _one_of_that_module(self) -> str:
        """Return a fix that names a suitable class of the same module; "" if there is none."""
        path = self.registry.get(self.kind, self.kind)
        module = sys.modules.get(path.rpartition(".")[0])
        fitting = defined_in(module, self.base) if module and self.base else []
        return f"{self.section}.kind={path.rpartition('.')[0]}.{fitting[0]}" if fitting else ""


def methods_of(base: type) -> dict[str, list[str]]:
    """Return {public method: names of its arguments} of a base class."""
    functions = {name: own for name, own in vars(base).items() if isinstance(own, FunctionType) and name[0] != "_"}
    return {name: list(inspect.signature(own).parameters)[1:] for name, own in functions.items()}


def misfit(called: Callable[..., Any], *arguments: str) -> str:
    """Return the reason why a function or class does not accept these arguments; "" if it does."""
    try:
        inspect.signature(called).bind(*arguments)
    except TypeError as error:
        return f"{inspect.signature(called)}: {error}"
    return ""


def check_arguments(own: type, calls: Mapping[str, Sequence[str]]) -> None:
    """Refuse a class if one of its methods does not accept the arguments that a run passes; methods may be absent."""
    for name, arguments in calls.items():
        method = inspect.getattr_static(own, name, None)
        if isinstance(method, FunctionType) and (why := misfit(method, "self", *arguments)):
            wanted = f"def {name}({', '.join(['self', *arguments])})"
            raise RequestError("own-method-arguments", f"{own.__name__}.{name} does not accept the arguments of a run",
                               seen=f"def {name}{why}", expected=wanted,
                               fix=f"{wanted} in {own.__module__}.{own.__qualname__}")  # fmt: skip


def _parameters(factory: Callable[..., Any]) -> list[inspect.Parameter]:
    if isinstance(factory, type):
        owner = next(base for base in factory.__mro__ if "__init__" in vars(base))
        if (owner.__module__, owner.__name__) == ("torch.nn.modules.module", "Module"):
            return []  # The class lacks a constructor, and torch's constructor claims to accept any argument.
    return list(inspect.signature(factory).parameters.values())
