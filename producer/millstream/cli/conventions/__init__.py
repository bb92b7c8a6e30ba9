"""What all commands have in common: options, help, exit codes, interrupts."""
