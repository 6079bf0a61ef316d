"""The kinds of example that the miniature's world is made of, one small module each."""
