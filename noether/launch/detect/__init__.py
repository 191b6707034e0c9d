"""Find this process's ranks, their devices and their meeting point: one module or folder for each launcher."""
