"""Your own surrogate model: data set, model and task."""
