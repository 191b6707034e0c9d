"""What is learned, whatever its field: data, models, tasks, and their evaluation."""
