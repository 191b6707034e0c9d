"""A rank's dealings with the other ranks: rendezvous, process group and agreed stop."""
