"""New projects: the template, and `noether init`, which writes a project from it."""
