"""Parts that several algorithms of one family share."""
