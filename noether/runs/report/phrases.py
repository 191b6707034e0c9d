"""Names as the report's sentences write them."""


def in_words(name: str) -> str:
    """A name from a configuration or a file, as words."""
    return name.replace("_", " ")


def heading(name: str) -> str:
    """A name as a heading."""
    words = in_words(name)
    return words[:1].upper() + words[1:]


def full_stop(text: str) -> str:
    """A text as a sentence: a capital at the start, one full stop at the end."""
    return text[:1].upper() + text[1:].rstrip(".") + "."
