"""Communication between the ranks of a run: rendezvous, process group and agreed stop."""
