"""What several algorithms of one family share."""
