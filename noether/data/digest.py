"""The SHA-256 of a data file, beside it in the form that `sha256sum --check` reads. Without torch."""

from hashlib import file_digest
from pathlib import Path

from noether.common.whole_file import write_whole
from noether.errors import RequestError


def digest_path(path: Path) -> Path:
    """Returns where the digest of a file lies."""
    return path.with_name(f"{path.name}.sha256")


def digest_of(path: Path) -> str:
    """Returns a file's SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def record_digest(path: Path, digest: str) -> None:
    """Writes a file's digest beside it."""
    write_whole(digest_path(path), f"{digest}  {path.name}\n")


def check_digest(path: Path) -> None:
    """Refuses a file that is not as it was written; one whose digest nobody has written passes.

    Reads the whole file, which whoever asks is about to read anyway: a flipped bit would train other weights.
    """
    try:
        recorded = digest_path(path).read_text(encoding="ascii").partition(" ")[0]
    except (OSError, ValueError):
        return
    try:
        found = digest_of(path)
    except OSError as error:
        found = error.strerror or str(error)
    if found != recorded:
        raise RequestError(
            f"{path} is damaged",
            seen=f"SHA-256 {found}",
            expected=f"{recorded}, as it was written",
            fix=f"rm {path} {digest_path(path)}      (and have it made again, or copy it again)",
        )
