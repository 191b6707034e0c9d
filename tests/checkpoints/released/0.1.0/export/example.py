"""How to ask this model without noether: torch alone is needed. Run it here: python example.py

torch.export.load can run code that the file holds: load only a model.pt2 whose maker you trust.
The program takes its arguments by position and returns a tuple. model.json lists both, in their order, with shapes
and units: a word in a shape ("batch", "surface") is an axis of any length, the same wherever the word stands.
"""

import json
from pathlib import Path

import torch

here = Path(__file__).resolve().parent
about = json.loads((here / "model.json").read_text())
program = torch.export.load(here / "model.pt2").module()

# Random numbers in the place of your own arrays: float32, positions in the unit that model.json gives.
lengths = {"batch": 2}
arguments = []
for argument in about["arguments"]:
    shape = [lengths.setdefault(axis, 1000) if isinstance(axis, str) else axis for axis in argument["shape"]]
    low, high = torch.tensor(argument["low"]), torch.tensor(argument["high"])
    arguments.append(low + (high - low) * torch.rand(shape))

with torch.no_grad():
    results = program(*arguments)

for result, field in zip(results, about["results"]):
    print(f"{field['name']}: shape {tuple(result.shape)}, mean {result.mean():.4g} {field['unit']}")
