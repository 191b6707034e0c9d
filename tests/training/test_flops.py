"""Operations are counted as torch's own counter counts them."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from noether.launch.process_group.torch_internals import flop_counter


def test_the_count_is_that_of_torchs_own_counter() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.linear = nn.Conv1d(3, 8, 3, padding=1), nn.Linear(8, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.linear(self.convolution(x).mT)
            heads = x.unflatten(-1, (2, 8)).transpose(1, 2)
            return nn.functional.scaled_dot_product_attention(heads, heads, heads)

    model, x = Net(), torch.randn(4, 3, 10)
    with FlopCounterMode(display=False) as theirs:
        model(x).square().sum().backward()
    with flop_counter() as ours:
        model(x).square().sum().backward()
    assert ours.get_total_flops() == theirs.get_total_flops() > 0
