"""Weights of another run: those that fit are loaded, and the others are listed; patterns freeze parameters."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file
from torch import nn

from noether.checkpoints.format import write_checkpoint
from noether.checkpoints.initial import freeze, load_initial
from noether.checkpoints.named import named_weights
from noether.common.errors import RequestError
from noether.core.data.layout import Layout
from noether.core.models.build import build_model
from tests.saved import META

SMALL_RUN = Path(__file__).parents[1] / "physics" / "predict" / "small_runs" / "upt"
OPTIONS = {"dim": 12, "heads": 2, "encoder_depth": 1, "decoder_depth": 1}


def test_other_fields_begin_with_the_weights_of_the_cars_and_say_what_is_new() -> None:
    layout = Layout({"surface_points": {"p": 1, "shear": 3}, "wake_points": {"u": 3}}, parameters={"speed": 1})
    model = build_model("upt", layout, **OPTIONS)
    drawn = {name: value.clone() for name, value in model.state_dict().items()}
    found = load_initial(model, named_weights(str(SMALL_RUN)))
    counted, reshaped, new, unused = found
    assert re.findall(r"head\.\w+", reshaped) == ["head.weight", "head.bias"]
    assert "query_mlp.wake_points" in new
    assert "query_mlp.volume_points" in unused
    assert torch.equal(model.state_dict()["head.weight"], drawn["head.weight"])
    assert not torch.equal(model.state_dict()["pooling.combine.weight"], drawn["pooling.combine.weight"])
    assert re.search(rf"\d+ of {len(drawn)} tensors", counted)


def test_a_file_of_weights_will_do(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2, 3), "bias": torch.ones(5)}, tmp_path / "w.safetensors")
    model = nn.Linear(3, 2)
    found = load_initial(model, named_weights(str(tmp_path / "w.safetensors")))
    assert ("1 of 2 tensors" in found[0], found[1].endswith("differ): bias 5 → 2")) == (True, True)
    assert torch.equal(model.weight.detach(), torch.ones(2, 3))


@pytest.mark.parametrize("what", ["missing", "empty-folder", "damaged", "nothing-fits"])
def test_weights_that_cannot_be_taken_are_refused(what: str, tmp_path: Path) -> None:
    where = tmp_path / what
    if what == "empty-folder":
        where.mkdir()
    elif what == "damaged":
        where.write_bytes(b"no safetensors")
    elif what == "nothing-fits":
        save_file({"other": torch.ones(1)}, where)
    with pytest.raises(RequestError):
        load_initial(nn.Linear(3, 2), named_weights(str(where)))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run with two checkpoints, each with EMA weights; the second one is the best."""
    for updates, metric in ((1, 0.5), (2, 0.1)):
        content = {name: [save({"weight": torch.full((2, 3), float(updates))})] for name in ("model", "ema")}
        files = {f"{name}.safetensors": parts for name, parts in content.items()}
        write_checkpoint(tmp_path / "run" / "checkpoints", updates, files, META | {"metric": metric})
    return tmp_path / "run"


def test_the_weights_of_a_run_are_those_of_its_best_checkpoint(run: Path) -> None:
    assert named_weights(str(run)).path == run / "checkpoints/update-000000002/ema.safetensors"


@pytest.mark.parametrize("where", [".", "checkpoints/update-000000002", "checkpoints/update-000000002/ema.safetensors"])
@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_weights_that_are_not_as_they_were_written_are_refused(where: str, damage: str, run: Path) -> None:
    file = run / "checkpoints/update-000000002/ema.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.unlink() if damage == "gone" else file.write_bytes(bytes(content))
    with pytest.raises(RequestError) as refused:
        load_initial(nn.Linear(3, 2), named_weights(str(run / where)))
    assert refused.value.code in ("checkpoint-damaged", "best-checkpoint-damaged", "no-weights-there")


def test_patterns_freeze_parameters_and_a_pattern_without_one_is_refused() -> None:
    model = build_model("upt", **OPTIONS)
    frozen = freeze(model, ("pooling.*", "encoder.*"))
    assert frozen == [name for name, p in model.named_parameters() if not p.requires_grad]
    assert all(name.startswith(("pooling.", "encoder.")) for name in frozen)
    with pytest.raises(RequestError, match=r"fix .*pooling\.\*"):
        freeze(model, ("poolings.*",))
