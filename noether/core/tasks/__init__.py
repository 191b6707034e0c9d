"""From predictions to a loss and metrics: the base class of tasks, and classification."""
