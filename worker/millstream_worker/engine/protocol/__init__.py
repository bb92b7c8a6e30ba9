"""Shared by the front and the engine process: configuration, requests, outputs, frames."""
