"""Settings that are known to give something, with what they give."""
