"""The worker process: prompts, batches, scheduling and sampling."""
