"""What every package may use: errors, text, files, reading data that nobody vouches for."""
