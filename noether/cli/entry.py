"""Runs one command and leaves with its exit code."""

import codecs
import locale
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from noether import __version__
from noether.cli.commands import ALONE, GROUPS, VERBS
from noether.cli.help import command_help, group_help, overview
from noether.common.container import as_typed_here, image_engine
from noether.common.process_defaults import set_process_defaults
from noether.common.shown import shown_text
from noether.common.signals import leave_when_told
from noether.errors import ExitCode, NoetherError, RequestError, path_refusal, shown, signal_code

UTF8_MODE = "PYTHONUTF8"
ASKS_FOR_HELP = ("--help", "-h", "help")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs one command and leaves with its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _open_closed_streams()
    try:
        _check_working_directory()
        _use_utf8()
        if arguments[:1] == ["__complete"]:  # What the scripts of `noether completion` ask.
            from noether.cli.completing import complete_here

            _leave(complete_here(arguments[1:]))
        if arguments[:1] == ["train"]:
            leave_when_told()
        set_process_defaults()
        code = _answer(arguments)
    except NoetherError as error:
        _show(as_typed_here(error))
        code = error.exit_code
    except KeyboardInterrupt:
        print("noether: interrupted", file=sys.stderr)
        code = signal_code(signal.SIGINT)
    except BrokenPipeError:
        # The reader left (noether plan | head): nothing is wrong, and nothing more can be said.
        sys.stderr.close()
        code = ExitCode.FAILED
    except OSError as error:
        refusal = path_refusal(error)
        if refusal is None:
            raise
        _show(as_typed_here(refusal))
        code = ExitCode.REQUEST
    _leave(int(code))


def _answer(arguments: list[str]) -> int:
    """Runs one command line; a signal that asked to leave while a class was being made leaves as itself.

    Python 3.11 raises a RuntimeError in place of what comes out of `__set_name__`, which every dataclass field has, so
    also of a signal's SystemExit or KeyboardInterrupt during an import.
    """
    try:
        return dispatch(arguments)
    except RuntimeError as error:
        if isinstance(error.__cause__, SystemExit | KeyboardInterrupt):
            raise error.__cause__ from None
        raise


def _open_closed_streams() -> None:
    """Sends a standard stream that was closed (`>&-`) to nowhere: else the next file opened would get its output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, which is this one, and for the processes that this one starts too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


def _check_working_directory() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise RequestError(
            "working-directory-removed",
            "the working directory has been removed",
            seen=os.environ.get("PWD", "a folder that is gone"),
            expected="a folder that exists",
            fix="cd ~",
        ) from None


def _use_utf8() -> None:
    """Restarts this program in Python's UTF-8 mode where the locale's encoding is another one (LC_ALL=C, say).

    Files are UTF-8 whatever the locale. A stream that was asked to be ASCII (PYTHONIOENCODING) stays so, and shows
    what it cannot write as ?; the processes that this one starts do the same.
    """
    if not _is_utf8(locale.getpreferredencoding(False)) and os.environ.get(UTF8_MODE) != "1":
        os.environ[UTF8_MODE] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    asked, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    if asked and not errors and not _is_utf8(asked):
        os.environ["PYTHONIOENCODING"] = f"{asked}:replace"
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure") and not _is_utf8(stream.encoding or "utf-8"):
            stream.reconfigure(errors="replace")


def _is_utf8(name: str) -> bool:
    try:
        return codecs.lookup(name).name == "utf-8"
    except LookupError:
        return False


def _show(error: NoetherError) -> None:
    print(shown_text(f"noether: {shown(str(error), error.code)}"), file=sys.stderr)


def train_main() -> NoReturn:
    """Runs `noether train` under its documented name, `noether-train`."""
    main(["train", *sys.argv[1:]])


def submit_main() -> NoReturn:
    """Runs `noether submit` under its documented name, `noether-train-submit-job`."""
    main(["submit", *sys.argv[1:]])


def dispatch(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code; errors are raised."""
    arguments = _one_word_a_verb(arguments)
    first, rest = (arguments[0], arguments[1:]) if arguments else ("help", [])
    if first in ("--version", "version"):
        print(f"noether {__version__}")
        return ExitCode.DONE
    if first in ASKS_FOR_HELP:
        return _show_help(_one_word_a_verb(rest)[:1])
    if (first in VERBS and {"--help", "-h"} & set(rest)) or (
        first in GROUPS and (not rest or (len(rest) == 1 and rest[0] in ASKS_FOR_HELP))
    ):
        return _show_help([first])
    return _run_command(arguments)


def _show_help(asked: list[str]) -> int:
    """Prints the help of a command, a group of commands or a section of settings; without one, of the program."""
    about = asked[0] if asked else ""
    if about in VERBS:
        print(command_help(about))
    elif about in GROUPS:
        print(group_help(about))
    elif not about or about.startswith("-"):
        print(overview())
    else:
        from noether.cli.settings_help import section_help, sections, setting_help

        section = about.removesuffix(".kind")
        print(section_help(section) if section in sections() else setting_help(about))
    return ExitCode.DONE


def _one_word_a_verb(arguments: list[str]) -> list[str]:
    """Joins the two words of a nested command, which then is handled like any other."""
    if len(arguments) > 1 and arguments[0] in GROUPS and not arguments[1].startswith("-") and arguments[1] != "help":
        return [" ".join(arguments[:2]), *arguments[2:]]
    return arguments


def _run_command(arguments: list[str]) -> int:
    from noether.cli.arguments import parse_arguments
    from noether.config.schema import RunConfig

    command = parse_arguments(arguments, VERBS, tuple(RunConfig.model_fields), image_engine(os.environ))
    function = VERBS[command.verb]
    if command.verb in ALONE:
        from noether.environments.process_facts import read_process_facts
        from noether.environments.single_process import refuse_several

        refuse_several(command.verb, os.environ, socket.gethostname(), read_process_facts())
    code: int = function(*command.positional, **command.flags)
    return code


def _leave(code: int) -> NoReturn:
    if "torch" in sys.modules:
        # A rank that leaves a process group behind (a refused run, a failed peer) can abort or deadlock in gloo's
        # threads while the interpreter shuts down, and its exit code would be lost (pytorch #56297).
        from noether.workers.worker import flush_output

        flush_output()
        os._exit(code)
    sys.stdout.flush()
    sys.exit(code)
