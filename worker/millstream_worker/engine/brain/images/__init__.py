"""Images in prompts: where their features stand, and when they are encoded."""
