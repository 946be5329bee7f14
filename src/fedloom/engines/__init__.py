"""Ways to run the clients of a round: one meaning, several engines."""
