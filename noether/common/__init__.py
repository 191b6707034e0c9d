"""Small helpers that every room may use, one for each fact."""
