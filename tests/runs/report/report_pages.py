"""Reading a page of the report: its elements, and its text by section."""

from html.parser import HTMLParser

SECTIONS = (
    *("errors", "cases", "scalars", "distributions", "use", "curves", "time"),
    *("plan", "environment", "configuration"),
)


class Page(HTMLParser):
    """The elements of a page, checked to be nested properly, and its text by section."""

    VOID = ("meta", "img", "br", "link", "input", "hr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.section = ""
        self.texts: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "section":
            self.section = dict(attrs)["id"] or ""
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts[self.section] = self.texts.get(self.section, "") + data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)
