"""What is wrong with this machine, job or image, and the line that mends it. Torch runs in children only."""
