"""A surrogate of one's own: data set, model and task."""
