"""One rank and the others: rendezvous, the process group, the agreed stop."""
