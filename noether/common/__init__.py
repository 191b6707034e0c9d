"""Small helpers that every wing may use."""
