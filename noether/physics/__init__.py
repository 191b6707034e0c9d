"""Physical fields at the points of shapes: data sets, models, the task, predictions, intervals and exports."""
