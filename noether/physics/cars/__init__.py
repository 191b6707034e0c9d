"""The data sets of cars that come with noether."""
