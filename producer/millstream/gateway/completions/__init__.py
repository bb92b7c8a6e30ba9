"""Chat completions and completions: body to job, job to answer or event stream."""
