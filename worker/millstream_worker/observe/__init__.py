"""For the operator: metrics, health, the watchdog, the log."""
