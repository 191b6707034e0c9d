"""Building a model from `model.kind` and its options; an invalid kind or option is refused."""

import sys

import pytest
from processes import lay
from torch import nn

from noether.common.dotted_path import code_granted
from noether.core.models.build import build_model, count_parameters
from tests.refusal import refusal

USER_CODE = """
import torch
from torch import nn


class Small(nn.Module):
    def __init__(self, width: int, depth: int = 1, *, bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=bias) for _ in range(depth))

    def forward(self, batch):
        x = batch["x"]
        for layer in self.layers:
            x = layer(x)
        return {"y": x}


class Anything(Small):
    def __init__(self, **options):
        super().__init__(**options)


class Empty(nn.Module):
    def forward(self, batch):
        return batch


class NotAModel:
    pass


class Broken(Empty):
    def __init__(self):
        raise ZeroDivisionError("in the user's own code")


def make_small(width):
    return Small(width)


def make_nothing():
    return "nothing"


number = 3
"""


NETWORKS = ("Small", "Smal", "Anything", "Empty", "NotAModel", "Broken", "make_small", "make_nothing", "number")
OTHERS = ("network.Small", "needs_more.Small", "wrong.Model")
GRANTED = [f"user_package.{name}" for name in (*(f"networks.{name}" for name in NETWORKS), *OTHERS)]
GRANTED.append("absent_package.networks.Small")


@pytest.fixture
def user_folder(tmp_path, monkeypatch):
    """Yield a user's working directory with `user_package.networks`."""
    files = {"__init__.py": "", "networks.py": USER_CODE, "wrong.py": "1 / 0\n"}
    lay(tmp_path / "user_package", {**files, "needs_more.py": "import a_module_nobody_has\n"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with code_granted(GRANTED):
        yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "user_package"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("kind", "options", "parameters"),
    [
        ("Small", {"width": 4}, 20),
        ("Small", {"width": 4, "depth": 3, "bias": False}, 48),
        ("Anything", {"width": 4, "depth": 2}, 40),
        ("make_small", {"width": 5}, 30),
        ("Empty", {}, 0),
    ],
    ids=["class", "keyword-only-option", "takes-any-option", "function", "no-constructor"],
)
def test_users_own_model_from_the_working_directory(user_folder, kind, options, parameters):
    model = build_model(f"user_package.networks.{kind}", **options)
    assert count_parameters(model) == parameters


def test_a_class_without_a_constructor_takes_nothing_after_a_compilation_too(user_folder):
    """torch.compile replaces nn.Module.__init__ by another function."""
    from torch._dynamo.mutation_guard import install_generation_tagging_init

    install_generation_tagging_init()
    with refusal("component-option-unknown"):
        build_model("user_package.networks.Empty", width=4)


OWN = "user_package.networks"
REFUSED = [
    ("ubt", {}, "no model is called 'ubt'", "model.kind=upt"),
    ("my model.py", {}, "model.kind is not a dotted path", "model.kind=my_package.my_module.MyClass"),
    (".Small", {}, "model.kind is not a dotted path", "model.kind=my_package.my_module.MyClass"),
    ("absent_package.networks.Small", {}, "no module named absent_package",
     "start from the directory that contains absent_package, or change model.kind="),
    ("user_package.network.Small", {}, "no module named user_package.network",
     "start from the directory that contains user_package, or change model.kind="),
    ("user_package.needs_more.Small", {},
     "user_package.needs_more cannot be imported: ModuleNotFoundError: No module named 'a_module_nobody_has'",
     "install a_module_nobody_has, or change model.kind="),
    ("user_package.wrong.Model", {}, "user_package.wrong cannot be imported: ZeroDivisionError: division by zero",
     "correct the last line shown, or change model.kind="),
    (f"{OWN}.Smal", {}, f"module {OWN} has no Smal", f"model.kind={OWN}.Small"),
    *((f"{OWN}.{name}", {}, f"model.kind={OWN}.{name} is not a model", f"model.kind={OWN}.Small")
      for name in ("NotAModel", "number", "make_nothing")),
    ("upt", {"hheads": 4}, "model.kind=upt has no option 'hheads'", "model.heads=4"),
    ("upt", {"zzz": 4}, "model.kind=upt has no option 'zzz'", "leave out model.zzz"),
    (f"{OWN}.Empty", {"width": 4}, f"model.kind={OWN}.Empty has no option 'width'", "leave out model.width"),
    (f"{OWN}.Small", {"depth": 2}, f"model.kind={OWN}.Small needs width", "model.width=..."),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "summary", "fix"), REFUSED)
def test_requests_that_cannot_be_met_name_the_line_to_change(user_folder, kind, options, summary, fix):
    with refusal(words="model.", summary=summary, fix=fix):
        build_model(kind, **options)


def test_an_error_of_the_users_own_constructor_keeps_its_traceback(user_folder):
    with pytest.raises(ZeroDivisionError):
        build_model(f"{OWN}.Broken")


def test_count_parameters_counts_frozen_ones_and_shared_ones_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[0].requires_grad_(False)
    model.append(model[0])
    assert count_parameters(model) == 9 + 3 + 3 + 3
