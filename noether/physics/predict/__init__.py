"""Predictions of a trained model on a shape: fields, forces, sensitivities."""
