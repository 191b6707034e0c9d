"""Where this process was started, and which ranks it answers for: one file or folder for each environment. No torch."""
