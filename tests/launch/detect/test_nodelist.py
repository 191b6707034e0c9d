"""Slurm's node lists and task counts are parsed, and invalid texts are refused without a long computation."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noether.common.errors import RequestError
from noether.launch.detect.slurm.node_list import MAX_NODES, parse_nodelist, parse_task_counts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("n1", "n1", id="one"),
        pytest.param("n[1-2]", "n1 n2", id="range"),
        pytest.param("node[098-101]", "node098 node099 node100 node101", id="zero padding over a power of ten"),
        pytest.param("n[8-11]", "n8 n9 n10 n11", id="no padding over a power of ten"),
        pytest.param("n[08-9,10]", "n08 n09 n10", id="the first number's width counts"),
        pytest.param("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2", id="the last bracket is fastest"),
        pytest.param("node[1-2]-ib", "node1-ib node2-ib", id="suffix"),
        pytest.param("a1,b[2-3,7],c", "a1 b2 b3 b7 c", id="mixed list"),
        pytest.param("n[2,1]", "n2 n1", id="order is kept"),
        pytest.param("[1-2]", "1 2", id="nothing but numbers"),
    ],
)
def test_a_list_and_its_names(text: str, names: str) -> None:
    assert parse_nodelist(text) == tuple(names.split())


@given(st.lists(st.tuples(st.text("abn-", max_size=3), st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9))))))
def test_brackets_multiply(parts: list[tuple[str, list[tuple[int, int]]]]) -> None:
    expected, text = [""], ""
    for literal, ranges in parts:
        shown = ",".join(f"{start}-{start + length}" for start, length in ranges)
        numbers = [str(n) for start, length in ranges for n in range(start, start + length + 1)] or [""]
        if len(expected) * len(numbers) > 2000:
            break
        text += literal + (f"[{shown}]" if shown else "")
        expected = [begin + literal + number for begin in expected for number in numbers]
    if text:
        assert parse_nodelist(text) == tuple(expected)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("n1,", id="a comma at the end"),
        pytest.param("n[1-2", id="not closed"),
        pytest.param("n[1-2[3]]", id="nested"),
        pytest.param("n[1,]", id="empty range"),
        pytest.param("n[3-1]", id="backwards"),
        pytest.param("n[a-b]", id="letters"),
        pytest.param("n[-1]", id="negative"),
        pytest.param("None assigned", id="a space"),
        pytest.param("n1\n", id="a line end"),
        pytest.param("n[١-٢]", id="another script's digits in a range"),
        pytest.param("$(reboot)", id="a command"),
        pytest.param("n[1-99999999]", id="too many nodes"),
        pytest.param("n[" + "9" * 5000 + "]", id="a number without end"),
        pytest.param("a[1-2]" * 40, id="two to the 40 nodes"),
        pytest.param("n[1-65536]" + "x" * 100_000, id="gigabytes of names"),
        pytest.param("[0]" * 20_000, id="brackets without end"),
        pytest.param("n," * 65_536 + "n", id="one node too many"),
    ],
)
def test_what_is_no_list_is_refused_at_once(text: str) -> None:
    start = time.monotonic()
    with pytest.raises(RequestError) as caught:
        parse_nodelist(text, "SLURM_STEP_NODELIST")
    assert time.monotonic() - start < 2
    assert "SLURM_STEP_NODELIST=" in str(caught.value)
    assert len(str(caught.value)) < 600


@given(st.text("n1-[],x 0", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        names = parse_nodelist(text)
    except RequestError:
        return
    assert 0 < len(names) <= MAX_NODES


@pytest.mark.parametrize(("text", "counts"), [("4", (4,)), ("2(x2),1", (2, 2, 1)), ("1(x4)", (1, 1, 1, 1))])
def test_task_counts(text: str, counts: tuple[int, ...]) -> None:
    assert parse_task_counts(text) == counts


@pytest.mark.parametrize(
    "text", ["", "2(x0)", "0", "2x2", "2(x2", "-1", "2,", "1(x99999999)", "9" * 5000, "1(x60000),1(x60000)"], ids=repr
)
def test_what_is_no_task_count_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="SLURM_STEP_TASKS_PER_NODE="):
        parse_task_counts(text, "SLURM_STEP_TASKS_PER_NODE")
