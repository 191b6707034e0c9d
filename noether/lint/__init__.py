"""What is wrong with a job script before it waits in the queue."""
