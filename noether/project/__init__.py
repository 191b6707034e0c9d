"""A project of one's own: the files that `noether init` writes."""
