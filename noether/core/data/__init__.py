"""From samples to batches: data sets, the global order of samples, and loaders."""
