"""Shared by all commands: options, help, exit codes, interrupts."""
