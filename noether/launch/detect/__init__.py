"""Where am I, and which ranks do I answer for: one module for each launcher, devices, rendezvous."""
