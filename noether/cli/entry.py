"""Run one command line and exit with its code: sets up the process, calls `dispatch`, and prints its errors."""

import os
import re
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

from noether.cli.commands import ALONE, programs
from noether.common.container import fix_for_container, image_engine
from noether.common.errors import ExitCode, NoetherError, RequestError, path_refusal, shown, signal_code
from noether.common.process_defaults import check_working_directory, open_closed_streams, set_process_defaults, use_utf8
from noether.common.processes import leave_when_told, leaving_as_told
from noether.common.sanitize import shown_text


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code. A program installed under a command's name runs that command."""
    named = programs().get(Path(sys.argv[0]).name) if arguments is None else None
    arguments = [*([named] if named else []), *(sys.argv[1:] if arguments is None else arguments)]
    open_closed_streams()
    try:
        arguments = _without_local_rank(arguments, os.environ)
        check_working_directory()
        use_utf8()
        if arguments[:1] == ["__complete"]:  # Called by the scripts of `noether completion`.
            from noether.cli.completing import complete_here

            _leave(complete_here(arguments[1:]))
        if arguments[:1] in (["train"], ["run"]):
            leave_when_told()
        set_process_defaults()
        if arguments[:1] == ["run"] and _names_several(arguments):
            # The fork server imports torch while this process places the ranks.
            from noether.launch.processes.spawner import warm_up

            warm_up()
        with leaving_as_told():
            code = dispatch(arguments)
    except KeyboardInterrupt:
        print("noether: interrupted", file=sys.stderr)
        code = signal_code(signal.SIGINT)
    except BrokenPipeError:
        # The reader of a pipe has ended (noether plan | head). This is not an error, but no more can be printed.
        sys.stderr.close()
        code = ExitCode.FAILED
    except (NoetherError, OSError) as error:
        refusal = error if isinstance(error, NoetherError) else path_refusal(error)
        if refusal is None:
            raise
        told = fix_for_container(refusal)
        print(shown_text(f"noether: {shown(str(told), told.code)}"), file=sys.stderr)
        code = refusal.exit_code
    _leave(int(code))


def _names_several(words: list[str]) -> bool:
    """Return whether a `noether run` that starts ranks sets several devices in the words before the script."""
    own = " ".join(takewhile(lambda word: not word.endswith(".py"), words))
    return bool(re.search(r"\bdevices[= ](\d+,\d|[2-9]\b(?!,)|\d\d)", own)) and not re.search(r"--(dry|submit)", own)


def _without_local_rank(words: list[str], environ: Mapping[str, str]) -> list[str]:
    """Drop --local-rank=N, which torch.distributed.launch and deepspeed add although they also set LOCAL_RANK."""
    given = [word for word in words if re.match("--local[-_]rank=", word)]
    if any(word.partition("=")[2] != environ.get("LOCAL_RANK") for word in given):
        raise RequestError("local-rank-contradicts", f"{given[0]} contradicts LOCAL_RANK",
                           seen=f"LOCAL_RANK={environ.get('LOCAL_RANK', '')}", expected="the same rank in both",
                           fix=f"leave {given[0]} out")  # fmt: skip
    return [word for word in words if word not in given]


def dispatch(arguments: list[str]) -> int:
    """Run one command line and return its exit code. Errors are raised, not printed."""
    from noether.cli.binding import bind

    call = bind(arguments, image_engine(os.environ))
    if call.verb in ALONE:
        from noether.launch.detect.process_facts import read_process_facts
        from noether.launch.detect.resolve import refuse_several

        refuse_several(call.verb, os.environ, socket.gethostname(), read_process_facts())
    return call.run()


def _leave(code: int) -> NoReturn:
    if "torch" in sys.modules:
        # If a rank exits without leaving its process group (a refused run, a failed peer), gloo's threads can abort or
        # deadlock the interpreter's shutdown, and the exit code would be lost (pytorch #56297).
        from noether.launch.processes.worker import flush_output

        flush_output()
        os._exit(code)
    sys.stdout.flush()
    sys.exit(code)
