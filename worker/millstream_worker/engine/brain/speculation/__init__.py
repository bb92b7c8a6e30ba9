"""Draft tokens: guessed from what a row has read and what others have written, verified by the model."""
