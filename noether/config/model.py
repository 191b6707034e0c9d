"""Which model is trained, and its sizes."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, Tag, model_validator

from noether.config.section import ComponentSection, chosen_by_kind, dotted_path_or
from noether.errors import RequestError


class UPTConfig(ComponentSection):
    """Universal Physics Transformer (arXiv 2402.12365) with supernode pooling and a perceiver decoder."""

    problem = "fields"
    kind: Literal["upt"] = "upt"
    dim: int = Field(192, gt=0, description="Width of every token.")
    heads: int = Field(3, gt=0, description="Attention heads; must divide dim.")
    encoder_depth: int = Field(12, ge=1, description="Transformer blocks over the supernodes.")
    decoder_depth: int = Field(12, ge=1, description="Perceiver blocks in which queries read the supernodes.")
    supernodes: int | None = Field(None, gt=0, description="Tokens of the geometry; null: every geometry point.")
    radius: float = Field(9.0, gt=0, description="Pooling radius in scaled units (the domain is 1000 long).")
    max_neighbours: int = Field(32, gt=0, description="At most this many nearest points are pooled.")

    @model_validator(mode="after")
    def _heads_divide_dim(self) -> "UPTConfig":
        if self.dim % self.heads or self.dim // self.heads % 2 or self.dim // self.heads < 6:
            wide = max(6, 2 * round(self.dim / self.heads / 2))
            raise RequestError(
                "model.heads does not divide model.dim into heads that can be rotated",
                seen=f"model.dim={self.dim}, model.heads={self.heads}",
                expected="dim / heads even and at least 6 (rotary positions turn pairs on three axes)",
                fix=f"model.dim={wide * self.heads}",
            )
        return self


class ConvNetConfig(ComponentSection):
    """A small convolutional network for images: two convolutions, pooling, two linear layers."""

    problem = "classes"
    kind: Literal["convnet"] = "convnet"
    classes: int = Field(10, gt=1, description="Number of classes.")
    channels: int = Field(1, gt=0, description="Channels of the images.")
    side: int = Field(28, ge=6, multiple_of=2, description="Height and width of the images in pixels.")
    width: int = Field(32, gt=0, description="Channels of the first convolution; the second has twice as many.")
    hidden: int = Field(128, gt=0, description="Width of the hidden layer.")
    dropout: float = Field(0.25, ge=0, le=0.5, description="Share dropped before the hidden layer; twice it after.")


class CustomModelConfig(ComponentSection):
    """The user's own model: every other key is passed to its constructor."""

    model_config = ConfigDict(extra="allow")
    kind: Annotated[str, dotted_path_or("upt", "convnet")]


ModelConfig = Annotated[
    Annotated[UPTConfig, Tag("upt")]
    | Annotated[ConvNetConfig, Tag("convnet")]
    | Annotated[CustomModelConfig, Tag("custom")],
    chosen_by_kind("upt", "convnet"),
]
