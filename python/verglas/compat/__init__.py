"""Other libraries' names over Verglas."""
