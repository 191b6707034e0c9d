"""A trained model as one folder that runs without noether."""
