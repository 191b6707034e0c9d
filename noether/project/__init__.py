"""New projects: the files that `noether init` writes."""
