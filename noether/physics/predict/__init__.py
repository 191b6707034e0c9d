"""A trained model, asked about a shape: fields, forces, sensitivities."""
