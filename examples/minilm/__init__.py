"""The sentence encoder all-MiniLM-L6-v2: files, text, a float64 reference, and the forward pass of examples/minilm.py."""
