"""Networks and losses, in torch."""
