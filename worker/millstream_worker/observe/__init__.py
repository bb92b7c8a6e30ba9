"""What an operator sees: metrics, health, the watchdog, the log."""
