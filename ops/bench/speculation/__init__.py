"""What draft tokens gain: on text, and on other shapes that are made to write the same text."""
