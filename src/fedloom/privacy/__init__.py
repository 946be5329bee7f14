"""Privacy of a run: noise that is counted, by the setting `privacy`, and sums that nobody sees into."""
