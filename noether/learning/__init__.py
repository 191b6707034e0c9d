"""What training and evaluation share: the data, task and model of a run, and the precision they compute in."""
