"""Compare two ways for a network to read a case's parameters: adaptive layer norms in every block, or an extra token.

    python benchmarks/conditioning.py [--updates N] [--seeds N] [--out FILE.json] [SETTING=VALUE ...]

Trains a UPT of each kind on the same batches (the two take turns), and evaluates both on all points of the test split.
The extra token is the embedding of the parameters; it joins the supernodes, to which the encoder's blocks and the
queries attend. Settings are those of `noether train`. The default data are the built-in cars, whose three lengths and
yaw are the parameters; for prepared cases, add dataset=cases dataset_root=OUT.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import cast

import torch
from models import Contender, this_device
from record import at_least_one, told
from torch import Tensor

from noether.config.compose import compose_settings, validate
from noether.config.schema import RunConfig
from noether.core.data.build import prepare_data
from noether.core.models.build import count_parameters
from noether.physics.models.layers.blocks import PerceiverBlock
from noether.physics.models.layers.positions import rotary_table
from noether.physics.models.points import Latent, count_supernodes, mean_token
from noether.physics.models.upt import UPT

CARS = ("task.parameters={car: {}}",)
LEGS = 4
NORMS, TOKEN = "adaptive norms", "token"


class TokenUPT(UPT):
    """A UPT that reads a case's parameters only from an extra token beside the supernodes."""

    conditioned = property(lambda self: False)

    def encode(self, batch: dict[str, Tensor]) -> Latent:
        """Encode like UPT, but put the parameters' token before the supernodes, at the position 0."""
        points = self._in_position_precision(batch["geometry_points"])
        supernodes = count_supernodes(self.supernodes, points.shape[1])
        pooled = self.pooling(points, self._embed(points), supernodes, batch.get("geometry_mask"))
        assert self.parameter_embedding is not None
        tokens = torch.cat([self.parameter_embedding(batch), pooled], dim=1)
        at = torch.cat([torch.zeros_like(points[:, :1]), points[:, :supernodes]], dim=1)
        table = rotary_table(at, self.head_dim)
        for block in self.encoder:
            tokens = block(tokens, table)
        read = [cast(PerceiverBlock, block).keys_values(tokens, table) for block in self.decoder]
        return Latent(read, None, mean_token(tokens, None))


def config_of(kind: str, options: argparse.Namespace, seed: int) -> RunConfig:
    """Return the configuration of a run; the kinds NORMS and TOKEN differ only in the model."""
    lines = [*(options.settings or CARS), f"trainer.max_updates={options.updates}", f"seed={seed}"]
    settings = compose_settings(["model=upt_small", *lines])
    if kind == TOKEN:
        settings["model"]["kind"] = "conditioning.TokenUPT"
    return validate(settings)


def main() -> None:
    """Train both models; print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=at_least_one, default=600)
    parser.add_argument("--seeds", type=at_least_one, default=3)
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE")
    options = parser.parse_intermixed_args()
    group = this_device()
    found: dict[str, list[dict[str, float]]] = {}
    prepare_data(config_of(NORMS, options, 0))
    for seed in range(options.seeds):
        both = {kind: Contender(config_of(kind, options, seed), group) for kind in (NORMS, TOKEN)}
        for _ in range(LEGS):
            for one in both.values():
                one.train(options.updates // LEGS)
        for kind, one in both.items():
            one.evaluate()
            errors = one.curve[-1][1]
            found.setdefault(kind, []).append(errors)
            words = ", ".join(f"{name} {100 * error:.2f} %" for name, error in errors.items())
            print(f"seed {seed}, {kind}, {count_parameters(one.run.state.model):,} parameters: {words}", flush=True)
        if options.out:
            means = {
                kind: {name: statistics.mean(run[name] for run in runs) for name in runs[0]}
                for kind, runs in found.items()
            }
            about = {"settings": options.settings or CARS, "updates": options.updates, "seeds": seed + 1}
            options.out.write_text(json.dumps({**about, "relative_l2": found, "mean": means}, indent=1) + "\n")


if __name__ == "__main__":
    told(main)
