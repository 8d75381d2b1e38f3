"""What all HTTP interfaces share: callers, bodies, conditions, negotiation, errors, streams and middleware."""
