"""What the front and the engine's process exchange: configuration, requests, outputs, frames."""
