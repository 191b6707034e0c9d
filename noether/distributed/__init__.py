"""One worker talking to the others: process group, collectives, agreed stop."""
