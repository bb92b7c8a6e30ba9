"""The images of jobs: what a job knows of its own, and what is held for all."""
