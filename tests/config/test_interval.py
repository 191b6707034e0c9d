import pytest
from pydantic import TypeAdapter, ValidationError

from noether.config.interval import Interval
from noether.planning.batches import RunLength


@pytest.mark.parametrize(
    ("text", "updates"),
    [
        ("10 updates", 10),
        ("1 update", 1),
        ("2 epochs", 34),
        ("1epoch", 17),
        ("100 samples", 12),
        ("3 samples", 1),
        ("5 %", 10),
        ("0 %", 0),
        ("2.5 %", 5),
    ],
)
def test_every_unit_is_counted_in_updates(text: str, updates: int) -> None:
    interval = Interval.parse(text)
    assert RunLength(updates_per_epoch=17, effective_batch_size=8, total_updates=200).count_updates(interval) == updates


@pytest.mark.parametrize("text", ["10", "updates", "-1 updates", "0 epochs", "1.5 epochs", "10 minutes", ""])
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"length|whole number"):
        Interval.parse(text)


@pytest.mark.parametrize(("value", "words"), [(10, "write '10 updates'"), (None, "null is not a length")])
def test_what_has_no_unit_is_refused_with_one(value: object, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TypeAdapter(Interval).validate_python(value)


@pytest.mark.parametrize("text", ["10 updates", "1 epoch", "5000 samples", "5 %", "2.5 %"])
def test_a_length_is_written_as_it_was_read(text: str) -> None:
    assert str(Interval.parse(text)) == text
