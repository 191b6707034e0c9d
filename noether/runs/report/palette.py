"""The colours of the report page in both themes, and what they denote. Only the standard library."""

COLOURS: dict[str, tuple[str, str]] = {
    "paper": ("#fdfdfc", "#14181d"),
    "panel": ("#f4f5f3", "#1c2229"),
    "ink": ("#1b242e", "#e6eaee"),
    "muted": ("#5f6b77", "#98a4b0"),
    "line": ("#dde1e4", "#323b45"),
    "pale": ("#868f98", "#5e6874"),
    "accent": ("#0b6a8a", "#5cb8d6"),
    "second": ("#b54c14", "#f0935a"),
    "third": ("#76589f", "#b99be0"),
    "fourth": ("#44742a", "#93c572"),
}
"""The page's colours by name, light and dark. Series use accent, second, third and fourth in this order. Colour-blind
readers can distinguish these (blue, vermilion, purple and green) because their lightness differs."""
SERIES_COLOURS = ("accent", "second", "third", "fourth")

BANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "forward": ("accent", ("forward",)),
    "backward": ("third", ("backward",)),
    "waiting for other ranks": ("second", ("reduction",)),
    "waiting for data, copying": ("fourth", ("data", "copy")),
    "optimiser": ("muted", ("optimizer",)),
    "logging, evaluation, checkpoints, other": ("pale", ("logging", "evaluation", "checkpoint", "other")),
}
"""The bands of the time chart by label: the colour of each band, and the parts of the time that the band adds up."""
