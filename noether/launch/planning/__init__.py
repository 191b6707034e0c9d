"""What would happen here: ranks, and how a batch is divided over them."""
