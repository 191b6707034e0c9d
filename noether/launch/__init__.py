"""Where this process was started, the ranks it answers for, their processes and their group."""
