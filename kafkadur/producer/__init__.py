"""Sending: the producer, its transacted form, and the one of a distributed topic."""
