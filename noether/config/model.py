"""Settings of the model: its kind and its sizes."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, Tag, model_validator

from noether.config.section import ComponentSection, chosen_by_kind, dotted_path_or
from noether.config.setting_error import SettingError


def check_heads(dim: int, heads: int, *, rotary: bool) -> None:
    """Raises SettingError if `heads` does not divide `dim`, or if rotary positions cannot rotate a head's channels.

    RoPE rotates pairs of channels on three axes, so a head needs an even number of channels, and at least 6.
    """
    step, smallest = (2 * heads, 6 * heads) if rotary else (heads, heads)
    if dim % step or dim < smallest:
        why = " (2 × heads: rotary positions rotate pairs of channels on three axes)" if rotary else ""
        raise SettingError(
            "heads-do-not-divide",
            "dim",
            f" cannot be divided by model.heads={heads}" + (" into heads that can be rotated" if rotary else ""),
            value=dim,
            seen=f"model.dim={dim}, model.heads={heads}",
            expected=f"a multiple of {step}{why}, at least {smallest}",
            fix=f"model.dim={max(smallest, round(dim / step) * step)}",
        )


class _Attention(ComponentSection):
    problem = "fields"
    rotary: ClassVar[bool] = True
    dim: int = Field(192, gt=0, description="Width of every token.")
    heads: int = Field(3, gt=0, description="Attention heads; must divide dim.")

    @model_validator(mode="after")
    def _heads_divide_dim(self) -> "_Attention":
        check_heads(self.dim, self.heads, rotary=self.rotary)
        return self


class _Supernodes(_Attention):
    supernodes: int | None = Field(None, gt=0, description="Number of geometry tokens; null: every geometry point.")
    radius: float = Field(9.0, gt=0, description="Pooling radius in scaled units (the domain is 1000 long).")
    max_neighbours: int = Field(32, gt=0, description="Pool at most this many nearest points into a supernode.")


class UPTConfig(_Supernodes):
    """Universal Physics Transformer (arXiv 2402.12365), with supernode pooling and a perceiver decoder."""

    kind: Literal["upt"] = "upt"
    encoder_depth: int = Field(12, ge=1, description="Transformer blocks over the supernodes.")
    decoder_depth: int = Field(12, ge=1, description="Perceiver blocks in which queries read the supernodes.")


class ABUPTConfig(_Supernodes):
    """Anchored-Branched UPT (arXiv 2502.09692): surface and volume anchors exchange information; queries read them."""

    kind: Literal["ab_upt"] = "ab_upt"
    geometry_depth: int = Field(1, ge=1, description="Transformer blocks over the supernodes.")
    physics_depth: int = Field(4, ge=1, description="Pairs of blocks: one within each set of points, one between them.")
    branch_depth: int = Field(2, ge=1, description="Number of last blocks, separate for surface and volume.")


class TransformerConfig(_Attention):
    """A plain transformer (arXiv 1706.03762) over the surface and volume points."""

    kind: Literal["transformer"] = "transformer"
    depth: int = Field(12, ge=1, description="Transformer blocks.")


class TransolverConfig(_Attention):
    """Transolver (arXiv 2402.02366): attention between slices, which group points of similar physical state."""

    rotary = False
    kind: Literal["transolver"] = "transolver"
    dim: int = Field(256, gt=0, description="Width of every point.")
    heads: int = Field(8, gt=0, description="Attention heads; must divide dim.")
    depth: int = Field(8, ge=1, description="Number of blocks.")
    slices: int = Field(32, gt=0, description="Number of slices per head.")
    mlp_ratio: int = Field(2, ge=1, description="Hidden width of the MLPs, divided by their outer width.")


class MLPConfig(ComponentSection):
    """A point-wise MLP that a case's parameters, or its shape, scale and shift: for tens to hundreds of cases."""

    problem = "fields"
    kind: Literal["mlp"] = "mlp"
    dim: int = Field(128, gt=0, description="Width of the hidden layers.")
    depth: int = Field(4, ge=1, description="Hidden layers.")
    octaves: int = Field(3, ge=0, description="Sines and cosines of each coordinate, each of twice the frequency.")
    case_dim: int = Field(64, gt=0, description="Width of what a case scales and shifts the layers by.")
    shape: bool | None = Field(
        None, description="Whether the geometry's points are read; null: only where cases have no parameters."
    )


class ConvNetConfig(ComponentSection):
    """A small convolutional network for images: two convolutions, pooling, two linear layers."""

    problem = "classes"
    kind: Literal["convnet"] = "convnet"
    classes: int = Field(10, gt=1, description="Number of classes.")
    channels: int = Field(1, gt=0, description="Channels of the images.")
    side: int = Field(28, ge=6, multiple_of=2, description="Height and width of the images in pixels.")
    width: int = Field(32, gt=0, description="Channels of the first convolution; the second has twice as many.")
    hidden: int = Field(128, gt=0, description="Width of the hidden layer.")
    dropout: float = Field(0.25, ge=0, le=0.5, description="Dropout rate before the hidden layer; twice that after.")


KNOWN = ("mlp", "upt", "ab_upt", "transformer", "transolver", "convnet")


class CustomModelConfig(ComponentSection):
    """The user's own model: all other keys are passed to its constructor."""

    model_config = ConfigDict(extra="allow")
    kind: Annotated[str, dotted_path_or(*KNOWN)]
    input: str | tuple[str, ...] | None = Field(
        None,
        description="Key or keys of the batch that are passed to the model as tensors; null: the whole batch, a dict.",
    )
    output: str | None = Field(
        None, description="Name for the tensor that the model returns (logits, a field); null: it returns a dict."
    )

    def options(self) -> dict[str, Any]:
        """Returns the keyword arguments for the model's constructor, including `input` and `output` if they are set."""
        unset = {name for name in ("input", "output") if getattr(self, name) is None}
        return self.model_dump(exclude={"kind", *unset})


ModelConfig = Annotated[
    Annotated[MLPConfig, Tag("mlp")]
    | Annotated[UPTConfig, Tag("upt")]
    | Annotated[ABUPTConfig, Tag("ab_upt")]
    | Annotated[TransformerConfig, Tag("transformer")]
    | Annotated[TransolverConfig, Tag("transolver")]
    | Annotated[ConvNetConfig, Tag("convnet")]
    | Annotated[CustomModelConfig, Tag("custom")],
    chosen_by_kind(*KNOWN),
]
