"""What goes wrong, in words: what was seen, what was expected, and the line to change."""

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
    """Not all ranks came in the time for them: the same request may succeed later (EX_UNAVAILABLE of sysexits.h)."""
    CHECKPOINTED = 75
    """Stopped early with everything saved: run the same command again (EX_TEMPFAIL of sysexits.h)."""


def signal_code(number: int) -> int:
    """Return the exit code of a process that a signal has ended, as shells and Slurm give it."""
    return 128 + number


class NoetherError(Exception):
    """Base of the errors that are shown to users as text, without a traceback."""

    exit_code: int = ExitCode.FAILED
    code: str = ""
    """The kind of the error, in words joined by hyphens; it stays when the words of a message change."""


class RequestError(NoetherError):
    """The request cannot be carried out, and the text says which line to change.

    Args:
        code: the kind of mistake, as `NoetherError.code`.
        summary: one line, no full stop: what is wrong.
        seen: what was found, as it was found.
        expected: what would have been accepted.
        fix: the line to write instead.
        mount: a path that a container may not have been given, which is what its user changes then.
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
        """What it was made of: `RequestError(**error.parts | {"fix": …})` is the same refusal with another fix."""
        return {name: getattr(self, name) for name in ("code", "summary", "seen", "expected", "fix", "mount")}

    def __reduce__(self) -> tuple[type["RequestError"], tuple[str, str], dict[str, str]]:
        # Raised in a worker and shown by its launcher: exceptions with keyword arguments need this to pickle.
        return (type(self), (self.code, self.summary), {**self.__dict__, "args": self.args})


class SettingError(RequestError, ValueError):
    """A setting that its section refuses. As a ValueError it is collected by pydantic, and explained with the others.

    `setting` is its name within the section ("": the check is of this one), `problem` the end of a line that begins so,
    `value` what it was set to, `instead` the value to write; the other parts are those of a RequestError.
    """

    def __init__(
        self, code: str, setting: str, problem: str = "", *, value: object = None, instead: str = "", **parts: str
    ) -> None:
        self.setting, self.problem, self.instead = setting, problem, instead
        self.given = "" if value is None else f"={value}"
        super().__init__(code, f"{setting}{self.given}{problem}", **parts)


class JoinError(RequestError):
    """Not all ranks of a run have met within the time that they had; the same request may succeed later."""

    exit_code = ExitCode.LATE


class MidRunError(RequestError):
    """What ends a run that was under way; the same request may succeed later, or on another machine."""

    exit_code = ExitCode.FAILED


class EndedByAnother(RequestError):
    """This rank ends because rank 0 has ended or refused the run, and is not what the run failed of."""

    exit_code = ExitCode.FAILED


class RanksLate(Exception):
    """The other ranks did not come within `limit_s` seconds."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        super().__init__(f"the other ranks did not come within {limit_s:g} s")


class InterruptedStartError(KeyboardInterrupt):
    """A signal came before this process trained anything, or can; the exit code is 128 plus its number.

    No Exception: nothing that tries a user's model or waits for a peer takes it for theirs.
    """

    def __init__(self, number: int, kept: str = "nothing was trained") -> None:
        self.exit_code = signal_code(number)
        super().__init__(f"was interrupted by {signal.Signals(number).name}; {kept}")


def path_refusal(error: BaseException) -> RequestError | None:
    """Return the refusal of a path that was typed, where an OSError is none of the program's own; else None."""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return RequestError("name-too-long", "a name is too long for the file system",
                            seen=f"{str(error.filename)[:60]}…, of {len(str(error.filename))} characters",
                            expected="at most 255 bytes between two slashes", fix="a shorter name")  # fmt: skip
    if not isinstance(error, PermissionError) or not error.filename:
        return None
    return RequestError("no-permission", f"no permission for {error.filename}",
                        seen=f"{error.strerror}, as user {os.geteuid()}",
                        expected="files and folders that this user may read",
                        fix=f"ls -ld {error.filename}      (shows whose it is; or name another path)",
                        mount=os.path.dirname(str(error.filename)) or ".")  # fmt: skip


def shown(error: str, code: str) -> str:
    """Return what an error says, with its code, by which docs can be searched, at the end of the first line."""
    first, end, rest = error.partition("\n")
    return f"{first} [{code}]{end}{rest}" if code else error


def one_line(error: BaseException) -> str:
    """Return what an exception says, on one line and cut short; the name of its class where it says nothing."""
    return " ".join(str(error).split())[:200] or type(error).__name__
