"""What a section's own check raises: the setting, its value and the value to write, for whoever shows them."""


class SettingError(ValueError):
    """A setting that its section refuses.

    Args:
        code: the kind of mistake, as `NoetherError.code`.
        setting: its name within that section; "" where the check is of this one setting.
        problem: what is wrong with it, as the end of a line that begins with the setting.
        value: what it was set to, where that is wrong.
        instead: the value to write, where one is known.
        meant: the setting to write, where this one does not exist.
    """

    def __init__(
        self, code: str, setting: str, problem: str, *, value: object = None, instead: str = "", meant: str = ""
    ) -> None:
        self.code, self.setting, self.problem, self.instead, self.meant = code, setting, problem, instead, meant
        self.given = "" if value is None else f"={value}"
        super().__init__(f"{setting}{self.given}{problem}")
