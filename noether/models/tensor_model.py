"""Adapts a model that takes tensors and returns one: `model.input` and `model.output` name them in batch and result."""

from torch import Tensor, nn


class TensorModel(nn.Module):
    """Calls a model with tensors of the batch, and returns its result under a name.

    Args:
        model: takes one tensor (B, …) for each of `inputs`, or the whole batch where there are none.
        inputs: the keys of the batch that it takes, in its order.
        output: the name that its result gets; "" where it returns a dictionary itself.
    """

    def __init__(self, model: nn.Module, inputs: tuple[str, ...], output: str) -> None:
        super().__init__()
        self.model, self.inputs, self.output = model, inputs, output

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns {output: (B, …)}.

        Raises:
            KeyError: the batch has no such input.
        """
        result = self.model(*(batch[key] for key in self.inputs)) if self.inputs else self.model(batch)
        return {self.output: result} if self.output else result
