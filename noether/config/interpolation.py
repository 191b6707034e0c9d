"""Replacing `${trainer.max_epochs}` and `${oc.env:USER}` in settings by their values (OmegaConf's grammar)."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from noether.common.errors import RequestError
from noether.common.suggest import nearest
from noether.config.section import flat
from noether.config.yaml_reader import DEEPEST

# The variables that `${oc.env:NAME}` can read. If it could read every variable, another person's settings file could
# copy a secret from the environment into the names and files of a run.
ALLOWED = (
    "USER", "LOGNAME", "HOME", "HOSTNAME", "PWD", "TMPDIR", "SCRATCH", "WORK", "DATA", "PROJECT",
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PBS_JOBID", "PBS_JOBNAME", "LSB_JOBID", "LSB_JOBNAME",
)  # fmt: skip
ALLOWED_PREFIXES = ("SLURM_", "NOETHER_")
NEVER = ("NOETHER_RUN_KEY", "SLURM_JWT")

MOST_MADE = 20_000
"""The maximum number of values after interpolation, twice that of the largest file; a long text counts as several."""
Place = tuple[str | int, ...]


def interpolated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with every `${…}` replaced, without OmegaConf's resolvers, because any code can register one.

    RequestError: a `${…}` cannot be parsed, or names an unknown setting, itself, or a variable that it must not read.
    """
    walk = _Interpolation(settings)
    return {name: walk.replaced(value, (name,)) for name, value in settings.items()}


class _Interpolation:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._open: list[Place] = []
        self._parsed: dict[str, Any] = {}
        self._made = 0

    def replaced(self, value: Any, place: Place) -> Any:
        """Return a value with each `${…}` in it replaced. `place`: the keys that lead to it in the settings."""
        self._made += 1 + (len(value) // 100 if isinstance(value, str) else 0)
        if self._made > MOST_MADE or len(self._open) > DEEPEST:
            most = f"at most {MOST_MADE:,} values with every ${{…}} replaced, {DEEPEST} deep"
            raise _refused(place, str(value)[:80], "interpolation-endless", "settings name others without end", most)
        if isinstance(value, Mapping):
            return {key: self.replaced(part, (*place, key)) for key, part in value.items()}
        if isinstance(value, list):
            return [self.replaced(part, (*place, index)) for index, part in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        if place in self._open:
            raise _refused(place, value, "interpolation-loop", f"{value} names itself", "another setting")
        # Imported only here, because the import takes as long as a whole command, and few settings need the grammar.
        from omegaconf.errors import OmegaConfBaseException
        from omegaconf.grammar_parser import parse
        from omegaconf.grammar_visitor import GrammarVisitor

        self._open.append(place)
        try:
            visitor = GrammarVisitor(lambda key, _: self._setting(key, place, value), _variable, None)
            if value not in self._parsed:  # Parsing takes several times as long as visiting.
                self._parsed[value] = parse(value)
            found = visitor.visit(self._parsed[value])
            self._made += len(found) // 100 if isinstance(found, str) else 0
            return found
        except OmegaConfBaseException:
            expected = "${SETTING} or ${oc.env:NAME}; in a text, ${ is written \\${"
            raise _refused(place, value, "invalid-interpolation", f"cannot read {value}", expected) from None
        finally:
            self._open.pop()

    def _setting(self, key: str, place: Place, text: str) -> Any:
        """Return the value of the setting `key`: a full name or, if it begins with dots, a name relative to `place`."""
        name = key.lstrip(".")
        found: Any = self._settings
        target: Place = ()
        for part in (*place[: len(name) - len(key) or -len(place)], *re.findall(r"[^.\[\]]+", name)):
            step = int(part) if isinstance(found, list) and str(part).isdigit() else part
            try:
                found = found[step]
            except (LookupError, TypeError):
                near = nearest(name, [known for known, _ in flat(self._settings)]) or "trainer.max_epochs"
                expected = f"a setting that the files set, by its full name such as ${{{near}}}"
                raise _refused(
                    place, text, "interpolation-not-found", f"${{{key}}} names no setting", expected
                ) from None
            target = (*target, step)
        return self.replaced(found, target)


def _refused(place: Place, text: str, code: str, summary: str, expected: str) -> RequestError:
    name = ".".join(map(str, place))
    return RequestError(code, summary, seen=f"{name}={text}", expected=expected, fix=f"leave {name} out")


def _variable(name: str, args: Sequence[Any], args_str: Sequence[str]) -> Any:
    """Return the value of `${name:args}`, which must be a variable of the environment: `${oc.env:NAME}`."""
    variable, seen = str(args[0]) if args else "", f"${{{name}:{','.join(args_str)}}}"
    if name != "oc.env" or not variable or len(args) > 2:
        expected = "${SETTING}, ${oc.env:NAME} or ${oc.env:NAME,DEFAULT}"
        raise RequestError(
            "unknown-resolver", f"settings cannot use {seen}", seen=seen, expected=expected, fix="write the value"
        )
    if not (variable in ALLOWED or variable.startswith(ALLOWED_PREFIXES)) or variable in NEVER:
        raise RequestError(
            "variable-not-allowed", f"a configuration may not read the variable {variable}", seen=seen,
            expected=f"one of {', '.join(ALLOWED)}, or {', '.join(f'{prefix}…' for prefix in ALLOWED_PREFIXES)}",
            fix=f'type the setting on the command line: name="${variable}"',
        )  # fmt: skip
    if variable not in os.environ and len(args) < 2:
        raise RequestError("variable-not-set", f"the variable {variable} is not set", seen=seen,
                           expected="a variable that is set, or a default",
                           fix=f"${{oc.env:{variable},DEFAULT}}")  # fmt: skip
    return os.environ.get(variable, args[-1])
