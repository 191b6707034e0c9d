"""What is wrong with this machine, job or image, and the line that fixes it. Torch runs in children only."""
