"""The layers that models of points share."""
