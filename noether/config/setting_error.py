"""What a section's own check raises: the setting, its value and the value to write, for whoever shows them."""

from noether.errors import RequestError


class SettingError(RequestError, ValueError):
    """A setting that its section refuses. As a ValueError it is collected by pydantic, and explained with the others.

    Args:
        code: the kind of mistake, as `NoetherError.code`.
        setting: its name within that section; "" where the check is of this one setting.
        problem: what is wrong with it, as the end of a line that begins with the setting.
        value: what it was set to, where that is wrong.
        seen: as of a RequestError, where it is more than this setting and its value.
        expected: as of a RequestError.
        fix: as of a RequestError; "": to leave the setting out, where its value is known.
        instead: the value to write, where one is known and the name of the setting is not.
    """

    def __init__(
        self,
        code: str,
        setting: str,
        problem: str = "",
        *,
        value: object = None,
        seen: str = "",
        expected: str = "",
        fix: str = "",
        instead: str = "",
    ) -> None:
        self.setting, self.problem, self.instead = setting, problem, instead
        self.given = "" if value is None else f"={value}"
        super().__init__(code, f"{setting}{self.given}{problem}", seen=seen, expected=expected, fix=fix)
