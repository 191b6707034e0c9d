"""What breaks runs on purpose, and shows that nothing is lost."""
