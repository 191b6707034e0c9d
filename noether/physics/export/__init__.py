"""Export of a trained model to one folder that runs without noether."""
