"""Fields at points of shapes: cases, cars, models, tasks, predictions, intervals, exports."""
