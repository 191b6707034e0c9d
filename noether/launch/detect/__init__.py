"""Find this process's ranks, their devices and their meeting point. Each launcher has its own module or folder."""
