"""Helpers for every package: errors, text, files, decoding of untrusted data."""
