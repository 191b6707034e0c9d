"""Errors as users read them: the value seen, the value expected, and the line to change."""

import errno
import os
import signal
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of every command; job scripts and schedulers act on them."""

    DONE = 0
    FAILED = 1
    REQUEST = 2
    """The request was wrong; running it again unchanged cannot succeed."""
    LATE = 69
    """Not all ranks arrived before the time-out: the same request may succeed later (EX_UNAVAILABLE of sysexits.h)."""
    CHECKPOINTED = 75
    """The run stopped early and saved everything; the same command resumes it (EX_TEMPFAIL of sysexits.h)."""


def signal_code(number: int) -> int:
    """Return the exit code that shells and Slurm report for a process killed by a signal."""
    return 128 + number


class NoetherError(Exception):
    """Base class of the errors shown to users as text, without a traceback."""

    exit_code: int = ExitCode.FAILED
    code: str = ""
    """The kind of error, as hyphenated words; stable even if the message is reworded."""


class RequestError(NoetherError):
    """A request that cannot be carried out; the text says which line to change.

    Args:
        code: the kind of mistake, see `NoetherError.code`.
        summary: the mistake in one line, without a full stop.
        seen: the value found, verbatim.
        expected: the values accepted.
        fix: the line to write instead.
        mount: a path that the container may lack; inside a container the fix offers to mount it.
    """

    exit_code: int = ExitCode.REQUEST

    def __init__(
        self, code: str, summary: str, *, seen: str = "", expected: str = "", fix: str = "", mount: str = ""
    ) -> None:
        self.code, self.summary, self.mount = code, summary, mount
        self.seen, self.expected, self.fix = seen, expected, fix
        parts = {"seen": seen, "expected": expected, "fix": fix}
        lines = [f"  {label:<9} " + text.replace("\n", "\n" + " " * 12) for label, text in parts.items() if text]
        super().__init__("\n".join([summary, *lines]))

    @property
    def parts(self) -> dict[str, str]:
        """The arguments that built this error: `RequestError(**error.parts | {"fix": …})` changes only the fix."""
        return {name: getattr(self, name) for name in ("code", "summary", "seen", "expected", "fix", "mount")}

    def __reduce__(self) -> tuple[type["RequestError"], tuple[str, str], dict[str, str]]:
        # A worker pickles the error for its launcher; an exception with keyword arguments needs this method for that.
        return (type(self), (self.code, self.summary), {**self.__dict__, "args": self.args})


class SettingError(RequestError, ValueError):
    """A setting that its section refuses. As the error is a ValueError, pydantic collects it with other mistakes.

    `setting` is the setting's name in the section ("" for the setting being checked). The summary consists of the name,
    `=value` and `problem`. `instead` is the value to write; `parts` are further arguments of RequestError.
    """

    def __init__(
        self, code: str, setting: str, problem: str = "", *, value: object = None, instead: str = "", **parts: str
    ) -> None:
        self.setting, self.problem, self.instead = setting, problem, instead
        self.given = "" if value is None else f"={value}"
        super().__init__(code, f"{setting}{self.given}{problem}", **parts)


class JoinError(RequestError):
    """Not all ranks of a run met before the time-out; the same request may succeed later."""

    exit_code = ExitCode.LATE


class MidRunError(RequestError):
    """A failure in the middle of a run; the same request may succeed later, or on another machine."""

    exit_code = ExitCode.FAILED


class EndedByAnother(RequestError):
    """This rank ends because rank 0 ended or refused the run; this error is a consequence, not the cause."""

    exit_code = ExitCode.FAILED


class RanksLate(Exception):
    """The other ranks did not arrive within `limit_s` seconds."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        super().__init__(f"the other ranks did not arrive within {limit_s:g} s")


class InterruptedStartError(KeyboardInterrupt):
    """A signal that arrived before this process trained anything; the exit code is 128 plus the signal's number.

    It is not an Exception, so that code that tries a user's model or waits for another rank does not catch it.
    """

    def __init__(self, number: int, kept: str = "nothing was trained") -> None:
        self.exit_code = signal_code(number)
        super().__init__(f"was interrupted by {signal.Signals(number).name}; {kept}")


def path_refusal(error: BaseException) -> RequestError | None:
    """Return a RequestError for an OSError that is due to a path typed by the user; None for any other error."""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return RequestError("name-too-long", "a name is too long for the file system",
                            seen=f"{str(error.filename)[:60]}…, of {len(str(error.filename))} characters",
                            expected="at most 255 bytes between two slashes", fix="use a shorter name")  # fmt: skip
    if not isinstance(error, PermissionError) or not error.filename:
        return None
    return RequestError("no-permission", f"no permission for {error.filename}",
                        seen=f"{error.strerror}, as user {os.geteuid()}",
                        expected="files and folders that this user may read",
                        fix=f"ls -ld {error.filename}      (shows its owner; or name another path)",
                        mount=os.path.dirname(str(error.filename)) or ".")  # fmt: skip


def shown(error: str, code: str) -> str:
    """Return an error's text with its code at the end of the first line; the docs list the codes."""
    first, end, rest = error.partition("\n")
    return f"{first} [{code}]{end}{rest}" if code else error


def one_line(error: BaseException) -> str:
    """Return an exception's message on one line, shortened; the name of its class if it has no message."""
    return " ".join(str(error).split())[:200] or type(error).__name__
