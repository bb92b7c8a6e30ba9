"""Chat completions and completions: from a body to a job, from the job to a response or event stream."""
