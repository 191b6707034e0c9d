"""Do the options of a model of points fit each other? The same questions for every model, asked before it is built."""

from noether.config.model import check_heads
from noether.errors import RequestError


def check_options(
    dim: int, heads: int, *, rotary: bool = True, radius: float | None = None, **counts: int | None
) -> None:
    """Checks what a model's constructor was given; a run's configuration has been through the same rules before.

    Args:
        dim: channels of a token.
        heads: attention heads.
        rotary: whether rotary positions turn the channels of a head, which then must be even and at least 6.
        radius: of a pooling, in the unit of the scaled positions; None: the model has none.
        counts: whatever else must be at least 1 (depths, slices, …), by the option's name; None is no limit.

    Raises:
        RequestError: the first option that does not fit, with the line to change.
    """
    for name, value in {"dim": dim, "heads": heads, **counts}.items():
        if value is not None and value < 1:
            raise RequestError(
                f"model.{name} is below 1",
                seen=f"model.{name}={value}",
                expected="a whole number of at least 1",
                fix=f"model.{name}=1",
            )
    if radius is not None and radius <= 0:
        raise RequestError(
            "model.radius is not positive",
            seen=f"model.radius={radius}",
            expected="a length in the unit of the scaled positions, which span about 0..1000",
            fix="model.radius=9.0",
        )
    check_heads(dim, heads, rotary=rotary)
