"""What a section's own check raises: the setting, its value and the value to write, for whoever shows them."""

from noether.common.errors import RequestError


class SettingError(RequestError, ValueError):
    """A setting that its section refuses. As a ValueError it is collected by pydantic, and explained with the others.

    Args:
        code: the kind of mistake, as `NoetherError.code`.
        setting: its name within that section; "" where the check is of this one setting.
        problem: what is wrong with it, as the end of a line that begins with the setting.
        value: what it was set to, where that is wrong.
        instead: the value to write, where one is known and the name of the setting is not.
        parts: as of a RequestError. Without them, the setting and its value were seen, and the fix is to leave it out.
    """

    def __init__(
        self, code: str, setting: str, problem: str = "", *, value: object = None, instead: str = "", **parts: str
    ) -> None:
        self.setting, self.problem, self.instead = setting, problem, instead
        self.given = "" if value is None else f"={value}"
        super().__init__(code, f"{setting}{self.given}{problem}", **parts)
