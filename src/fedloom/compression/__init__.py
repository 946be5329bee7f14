"""Uploads that are small: encoders of what clients send, by the setting `compression`, and what they leave behind."""
