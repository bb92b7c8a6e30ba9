"""Images of a model that reads them: encoded by its vision tower, unit by unit, and put into steps."""
