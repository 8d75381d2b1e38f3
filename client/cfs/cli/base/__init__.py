"""What the commands of `cfs` share: output, options, connections, and groups of commands."""
